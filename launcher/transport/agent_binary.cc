// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/agent_binary.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"

namespace dtrain::transport {
namespace {

constexpr size_t kChunkSize = 1 << 20;

std::string Beside(const char* name) {
  std::error_code error;
  auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string(name) : (self.parent_path() / name).string();
}

absl::StatusOr<AgentImage> Load(const std::string& path) {
  AgentImage image;
  image.path = path;
  image.fd.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!image.fd) {
    return PosixError(errno, absl::StrCat("open the agent program ", Escape(path),
                                          " (it belongs beside dtrain)"));
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  DTRAIN_CHECK(hash != nullptr && EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) == 1);
  std::vector<char> buffer(kChunkSize);
  for (;;) {
    ssize_t n = pread(image.fd.get(), buffer.data(), buffer.size(), static_cast<off_t>(image.size));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, absl::StrCat("read the agent program ", Escape(path)));
    if (n == 0) break;
    auto got = static_cast<size_t>(n);
    if (image.size == 0) image.machine = ElfMachine(absl::string_view(buffer.data(), got));
    DTRAIN_CHECK(EVP_DigestUpdate(hash.get(), buffer.data(), got) == 1);
    image.size += got;
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  DTRAIN_CHECK(EVP_DigestFinal_ex(hash.get(), digest, &length) == 1);
  image.sha256 =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), length));
  return image;
}

}  // namespace

std::string ElfMachine(absl::string_view bytes) {
  // e_ident: magic, class (2: 64 bit), data (1: little endian); e_machine at 18 in that order.
  if (bytes.size() < 20 || bytes.substr(0, 4) != "\177ELF" || bytes[4] != 2 || bytes[5] != 1) {
    return "";
  }
  switch (static_cast<uint8_t>(bytes[18]) | static_cast<uint8_t>(bytes[19]) << 8) {
    case 21:
      return "ppc64le";
    case 62:
      return "x86_64";
    case 183:
      return "aarch64";
    case 243:
      return "riscv64";
    default:
      return "";
  }
}

AgentBinary::AgentBinary(loop::Loop& loop, std::string path)
    : loop_(loop), path_(path.empty() ? Beside("dtrain-agent") : std::move(path)) {}

void AgentBinary::StartLoading() {
  if (started_) return;
  started_ = true;
  const absl::Status queued = pool_.TryRun([this] { promise_.set_value(Load(path_)); });
  // Without a thread it takes the loop some milliseconds.
  if (!queued.ok()) promise_.set_value(Load(path_));
}

void AgentBinary::WhenLoaded(absl::AnyInvocable<void(const Result&)> done) {
  StartLoading();
  auto tell = std::make_shared<decltype(done)>(std::move(done));
  const auto post = [&loop = loop_, future = future_, tell] {
    loop.Post([future, tell] { (*tell)(future.get()); });
  };
  // Behind the load in the pool's one thread, so it runs when the load is over.
  if (!pool_.TryRun(post).ok()) post();
}

}  // namespace dtrain::transport
