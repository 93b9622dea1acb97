// SPDX-License-Identifier: Apache-2.0
#include "launcher/version/version.h"

#include <dlfcn.h>
#include <elf.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <sys/utsname.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"
#include "launcher/transport/libssh.h"
#include "launcher/version/commit.h"

namespace dtrain::version {
namespace {

constexpr char kUnknown[] = "unknown";

// A T at `offset`; false when the file ends before it does.
template <typename T>
bool Read(absl::string_view file, uint64_t offset, T& out) {
  if (offset > file.size() || file.size() - offset < sizeof(T)) return false;
  std::memcpy(&out, file.data() + offset, sizeof(T));
  return true;
}

std::string BuildIdInNotes(absl::string_view notes) {
  const auto padded = [](uint64_t size) { return (size + 3) / 4 * 4; };
  Elf64_Nhdr note;
  while (Read(notes, 0, note)) {
    const uint64_t begin = sizeof(note) + padded(note.n_namesz);
    const uint64_t end = begin + padded(note.n_descsz);
    if (end > notes.size()) return "";
    const absl::string_view name = notes.substr(sizeof(note), note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && name == absl::string_view("GNU\0", 4)) {
      return absl::BytesToHexString(notes.substr(begin, note.n_descsz));
    }
    notes.remove_prefix(end);
  }
  return "";
}

std::string BuildIdOfFile(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return "";
  // Notes are in the first page; programs are large.
  std::string head(1 << 16, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(in.gcount()));
  const std::string found = BuildId(head);
  return found.empty() ? kUnknown : found;
}

struct Ssh {
  std::string file;
  std::string version;
};

// The loaded file that has libssh's functions, whatever its name is.
int FindSsh(dl_phdr_info* object, size_t, void* out) {
  void* library = dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  void* function = dlsym(library, "ssh_version");
  Dl_info info;
  if (function == nullptr || dladdr(function, &info) == 0) return 0;
  const char* said = reinterpret_cast<const char* (*)(int)>(function)(0);
  *static_cast<Ssh*>(out) = {info.dli_fname, said != nullptr ? said : kUnknown};
  return 1;
}

std::string DescribeSsh() {
  const absl::Status loaded = transport::LoadLibssh();
  if (!loaded.ok()) return absl::StrCat("not usable: ", loaded.message());
  Ssh ssh;
  if (dl_iterate_phdr(FindSsh, &ssh) == 0) return kUnknown;
  // "0.10.6/openssl/zlib"
  return absl::StrCat(ssh.version.substr(0, ssh.version.find('/')), ", ", Escape(ssh.file));
}

std::string DescribeAgent(const std::filesystem::path& self) {
  const auto agent = self.parent_path() / "dtrain-agent";
  const std::string id = BuildIdOfFile(agent);
  return absl::StrCat(Escape(agent.string()), id.empty() ? " (cannot be read)" : ", build id ", id);
}

}  // namespace

std::string BuildId(absl::string_view elf) {
  Elf64_Ehdr header;
  if (!Read(elf, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return "";
  }
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    if (!Read(elf, header.e_phoff + i * sizeof(part), part)) return "";
    if (part.p_type != PT_NOTE || part.p_offset > elf.size()) continue;
    const std::string found = BuildIdInNotes(elf.substr(part.p_offset, part.p_filesz));
    if (!found.empty()) return found;
  }
  return "";
}

std::string Describe(absl::string_view version) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::string out = absl::StrCat("dtrain ", version, "\n");
  const auto line = [&out](absl::string_view name, absl::string_view value) {
    absl::StrAppendFormat(&out, "  %-14s %s\n", name, value);
  };
  line("commit", *kCommit == '\0' ? kUnknown : kCommit);
  line("build id", BuildIdOfFile("/proc/self/exe"));
  absl::StrAppend(&out, "Inside:\n");
  for (const Library& library : Libraries()) line(library.name, library.version);
  absl::StrAppend(&out, "On this machine:\n");
  line("glibc", gnu_get_libc_version());
  utsname system;
  if (uname(&system) == 0) line(system.sysname, absl::StrCat(system.release, " ", system.machine));
  line("libssh", DescribeSsh());
  line("agent", DescribeAgent(self));
  return out;
}

}  // namespace dtrain::version
