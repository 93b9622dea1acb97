// SPDX-License-Identifier: Apache-2.0
#include "spawner/pam.h"

#include <dlfcn.h>

#include "spawner/children.h"

namespace dtrain::spawner {
namespace {

// As in Linux-PAM's security/_pam_types.h and pam_appl.h, which are the same since 1.0.
struct Message {
  int style;
  const char* text;
};
struct Conversation {
  int (*talk)(int count, const Message** messages, void** replies, void* data);
  void* data;
};
using StartPam = int (*)(const char*, const char*, const Conversation*, void**);
using Manage = int (*)(void*, int flags);
using Words = const char* (*)(void*, int code);
constexpr int kSuccess = 0, kConversationError = 19;  // PAM_SUCCESS, PAM_CONV_ERR
constexpr int kErrorText = 3, kInfoText = 4;          // PAM_ERROR_MSG, PAM_TEXT_INFO

// Modules say why, but may not ask: nobody is there.
int Listen(int count, const Message** messages, void** replies, void* data) {
  *replies = nullptr;
  for (int i = 0; i < count; ++i) {
    if (messages[i]->style != kErrorText && messages[i]->style != kInfoText)
      return kConversationError;
    if (messages[i]->text != nullptr)
      *static_cast<std::string*>(data) += messages[i]->text + std::string("; ");
  }
  return kSuccess;
}

}  // namespace

std::string AskPam(const std::string& account) {
  void* const library = dlopen("libpam.so.0", RTLD_NOW);
  if (library == nullptr) return Format("libpam cannot be loaded: %s", dlerror());
  const auto start = reinterpret_cast<StartPam>(dlsym(library, "pam_start"));
  const auto manage = reinterpret_cast<Manage>(dlsym(library, "pam_acct_mgmt"));
  const auto words = reinterpret_cast<Words>(dlsym(library, "pam_strerror"));
  if (!start || !manage || !words) return "libpam.so.0 is not Linux-PAM";
  std::string said;
  const Conversation conversation = {Listen, &said};
  void* handle = nullptr;
  int code = start("dtrain", account.c_str(), &conversation, &handle);
  if (code == kSuccess) code = manage(handle, 0);
  // Not ended: this process is about to be.
  return code == kSuccess ? "" : said + words(handle, code);
}

}  // namespace dtrain::spawner
