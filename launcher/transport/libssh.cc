// SPDX-License-Identifier: Apache-2.0
// The functions of libssh that we call, by its own names and declarations: each goes on to the one
// in the library.
#include "launcher/transport/libssh.h"

#include <dlfcn.h>
#include <libssh/callbacks.h>
#include <libssh/libssh.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace {

constexpr char kLibrary[] = "libssh.so.4";
// Comes with portable builds, beside the program.
constexpr char kOwnLibrary[] = "../lib/dtrain/libdtrain-ssh.so";
// A file to open instead of either.
constexpr char kVariable[] = "DTRAIN_LIBSSH";

}  // namespace

// (result, name, (parameters), (arguments))
#define DTRAIN_LIBSSH_FUNCTIONS(F)                                                                 \
  F(void, ssh_channel_free, (ssh_channel a), (a))                                                  \
  F(ssh_channel, ssh_channel_new, (ssh_session a), (a))                                            \
  F(int, ssh_channel_open_session, (ssh_channel a), (a))                                           \
  F(int, ssh_channel_read_timeout, (ssh_channel a, void* b, uint32_t c, int d, int e),             \
    (a, b, c, d, e))                                                                               \
  F(int, ssh_channel_request_exec, (ssh_channel a, const char* b), (a, b))                         \
  F(int, ssh_channel_send_eof, (ssh_channel a), (a))                                               \
  F(uint32_t, ssh_channel_window_size, (ssh_channel a), (a))                                       \
  F(int, ssh_channel_write, (ssh_channel a, const void* b, uint32_t c), (a, b, c))                 \
  F(void, ssh_clean_pubkey_hash, (unsigned char** a), (a))                                         \
  F(int, ssh_connect, (ssh_session a), (a))                                                        \
  F(int, ssh_event_add_session, (ssh_event a, ssh_session b), (a, b))                              \
  F(int, ssh_event_dopoll, (ssh_event a, int b), (a, b))                                           \
  F(void, ssh_event_free, (ssh_event a), (a))                                                      \
  F(ssh_event, ssh_event_new, (void), ())                                                          \
  F(void, ssh_free, (ssh_session a), (a))                                                          \
  F(const char*, ssh_get_error, (void* a), (a))                                                    \
  F(socket_t, ssh_get_fd, (ssh_session a), (a))                                                    \
  F(char*, ssh_get_fingerprint_hash, (enum ssh_publickey_hash_type a, unsigned char* b, size_t c), \
    (a, b, c))                                                                                     \
  F(char*, ssh_get_issue_banner, (ssh_session a), (a))                                             \
  F(int, ssh_get_poll_flags, (ssh_session a), (a))                                                 \
  F(int, ssh_get_publickey_hash,                                                                   \
    (const ssh_key a, enum ssh_publickey_hash_type b, unsigned char** c, size_t* d), (a, b, c, d)) \
  F(int, ssh_get_server_publickey, (ssh_session a, ssh_key * b), (a, b))                           \
  F(const char*, ssh_get_serverbanner, (ssh_session a), (a))                                       \
  F(int, ssh_is_connected, (ssh_session a), (a))                                                   \
  F(void, ssh_key_free, (ssh_key a), (a))                                                          \
  F(enum ssh_keytypes_e, ssh_key_type, (const ssh_key a), (a))                                     \
  F(const char*, ssh_key_type_to_char, (enum ssh_keytypes_e a), (a))                               \
  F(ssh_session, ssh_new, (void), ())                                                              \
  F(int, ssh_options_set, (ssh_session a, enum ssh_options_e b, const void* c), (a, b, c))         \
  F(int, ssh_pki_import_privkey_file,                                                              \
    (const char* a, const char* b, ssh_auth_callback c, void* d, ssh_key* e), (a, b, c, d, e))     \
  F(int, ssh_pki_import_pubkey_file, (const char* a, ssh_key* b), (a, b))                          \
  F(int, ssh_remove_channel_callbacks, (ssh_channel a, ssh_channel_callbacks b), (a, b))           \
  F(enum ssh_known_hosts_e, ssh_session_has_known_hosts_entry, (ssh_session a), (a))               \
  F(enum ssh_known_hosts_e, ssh_session_is_known_server, (ssh_session a), (a))                     \
  F(int, ssh_session_update_known_hosts, (ssh_session a), (a))                                     \
  F(void, ssh_set_blocking, (ssh_session a, int b), (a, b))                                        \
  F(int, ssh_set_channel_callbacks, (ssh_channel a, ssh_channel_callbacks b), (a, b))              \
  F(void, ssh_set_counters, (ssh_session a, ssh_counter b, ssh_counter c), (a, b, c))              \
  F(void, ssh_string_free_char, (char* a), (a))                                                    \
  F(int, ssh_userauth_agent, (ssh_session a, const char* b), (a, b))                               \
  F(int, ssh_userauth_list, (ssh_session a, const char* b), (a, b))                                \
  F(int, ssh_userauth_none, (ssh_session a, const char* b), (a, b))                                \
  F(int, ssh_userauth_publickey, (ssh_session a, const char* b, const ssh_key c), (a, b, c))       \
  F(int, ssh_userauth_try_publickey, (ssh_session a, const char* b, const ssh_key c), (a, b, c))

extern "C" {
#define DTRAIN_FORWARD(result, name, parameters, arguments) \
  namespace {                                               \
  decltype(&::name) loaded_##name;                          \
  }                                                         \
  result name parameters { return loaded_##name arguments; }
DTRAIN_LIBSSH_FUNCTIONS(DTRAIN_FORWARD)
#undef DTRAIN_FORWARD
}  // extern "C"

namespace dtrain::transport {
namespace {

// Takes the functions of one library. Empty, or what is wrong with it.
std::string LoadFrom(const std::string& file, bool any_version = false) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  bool all = library != nullptr;
  // Before 0.10 it reads known_hosts with strtok: of connections that are made at the same time one
  // in 500 finds its host key unknown (libssh's commit 196fe369).
  const auto version =
      all ? reinterpret_cast<decltype(&::ssh_version)>(dlsym(library, "ssh_version")) : nullptr;
  if (version != nullptr && !any_version && version(SSH_VERSION_INT(0, 10, 0)) == nullptr) {
    const std::string why =
        absl::StrCat(file, " is version ", version(0), ", and before 0.10 libssh cannot make ",
                     "several connections at once");
    dlclose(library);
    return why;
  }
#define DTRAIN_LOAD(result, name, parameters, arguments)                        \
  if (all) {                                                                    \
    loaded_##name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
    all = loaded_##name != nullptr;                                             \
  }
  DTRAIN_LIBSSH_FUNCTIONS(DTRAIN_LOAD)
#undef DTRAIN_LOAD
  if (all) return "";
  const char* why = dlerror();
  return why != nullptr ? why : file;
}

std::string OwnLibrary() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto file = self.parent_path() / kOwnLibrary;
  return !error && std::filesystem::exists(file, error) ? file.string() : "";
}

absl::Status Load() {
  const char* chosen = std::getenv(kVariable);
  const bool is_chosen = chosen != nullptr && *chosen != '\0';
  const std::string why = is_chosen ? LoadFrom(chosen, /*any_version=*/true) : LoadFrom(kLibrary);
  if (why.empty()) return absl::OkStatus();
  if (is_chosen) {
    return absl::InvalidArgumentError(
        absl::StrCat("load libssh from ", Escape(chosen), " (", kVariable, "): ", why));
  }
  const std::string own = OwnLibrary();
  const std::string why_not_own = own.empty() ? "" : LoadFrom(own);
  if (!own.empty() && why_not_own.empty()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("load libssh: ", why, own.empty() ? "" : "; ", why_not_own));
}

}  // namespace

absl::Status LoadLibssh() {
  static std::once_flag once;
  static absl::Status loaded;
  std::call_once(once, [] { loaded = Load(); });
  return loaded;
}

}  // namespace dtrain::transport
