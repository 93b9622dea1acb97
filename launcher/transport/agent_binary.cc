// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/agent_binary.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"

namespace dtrain::transport {
namespace {

constexpr size_t kChunkSize = 1 << 20;
// zlib's fastest: 15.5 MB become 7.0 in 0.19 s; its default takes 0.56 s for 6.4.
constexpr int kPackLevel = 1;
// Packing and unpacking take 0.3 s, and save 8.5 MB a node: at 1 Gbit/s, 0.07 s of the launcher's
// link.
constexpr int kPlainPushes = 3;
constexpr int kGzip = 15 + 16;  // deflateInit2's windowBits: the largest window, with gzip's header
// Machines for which a launcher may have an agent besides its own.
constexpr const char* kMachines[] = {"x86_64", "aarch64"};

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
    if (image.size == 0) {
      image.machine = ElfMachine(absl::string_view(buffer.data(), got));
      image.loader = ElfLoader(absl::string_view(buffer.data(), got));
    }
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

std::string PackFile(const AgentImage& image) {
  z_stream stream{};
  DTRAIN_CHECK(deflateInit2(&stream, kPackLevel, Z_DEFLATED, kGzip, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out;
  std::vector<char> in(kChunkSize), piece(kChunkSize);
  uint64_t read = 0;
  for (int result = Z_OK; result != Z_STREAM_END;) {
    ssize_t n = pread(image.fd.get(), in.data(), in.size(), static_cast<off_t>(read));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 && read != image.size) break;
    read += static_cast<uint64_t>(std::max<ssize_t>(n, 0));
    stream.next_in = reinterpret_cast<Bytef*>(in.data());
    stream.avail_in = static_cast<uInt>(std::max<ssize_t>(n, 0));
    do {
      stream.next_out = reinterpret_cast<Bytef*>(piece.data());
      stream.avail_out = static_cast<uInt>(piece.size());
      result = deflate(&stream, n <= 0 ? Z_FINISH : Z_NO_FLUSH);
      out.append(piece.data(), piece.size() - stream.avail_out);
    } while (stream.avail_out == 0);
    if (read > image.size) break;
  }
  deflateEnd(&stream);
  return read == image.size ? out : "";
}

template <typename T>
T At(absl::string_view bytes, size_t at) {
  T value{};
  if (at <= bytes.size() && bytes.size() - at >= sizeof(T)) {
    std::memcpy(&value, bytes.data() + at, sizeof(T));
  }
  return value;
}

}  // namespace

const std::string& AgentImage::Packed() const {
  std::call_once(pack_->once, [this] { pack_->bytes = PackFile(*this); });
  return pack_->bytes;
}

bool AgentImage::IsWorthPacking() const { return ++pack_->pushes > kPlainPushes; }

std::string ElfLoader(absl::string_view bytes) {
  if (ElfMachine(bytes).empty()) return "";
  // e_phoff, e_phentsize, e_phnum; of a header p_type (3: PT_INTERP), p_offset, p_filesz.
  const auto headers = At<uint64_t>(bytes, 32);
  const size_t size = At<uint16_t>(bytes, 54), count = At<uint16_t>(bytes, 56);
  for (size_t i = 0; i < count && headers < bytes.size(); ++i) {
    const absl::string_view header = bytes.substr(std::min(bytes.size(), headers + i * size));
    if (At<uint32_t>(header, 0) != 3) continue;
    const auto at = At<uint64_t>(header, 8), length = At<uint64_t>(header, 32);
    if (length < 2 || at >= bytes.size() || bytes.size() - at < length) return "";
    std::string loader(bytes.substr(at, length - 1));
    // A word of the script, as it is.
    const bool plain = std::all_of(loader.begin(), loader.end(), [](unsigned char c) {
      return absl::ascii_isalnum(c) || c == '/' || c == '.' || c == '-' || c == '_';
    });
    return plain ? loader : "";
  }
  return "";
}

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

AgentBinary::AgentBinary(loop::Loop& loop, std::string path, Duration longest_wait)
    : loop_(loop),
      path_(path.empty() ? Beside("dtrain-agent") : std::move(path)),
      order_(longest_wait) {}

void AgentBinary::StartLoading() {
  if (started_) return;
  started_ = true;
  paths_ = {path_};
  const auto others = std::filesystem::path(path_).parent_path() / "../lib/dtrain";
  for (const char* machine : kMachines) {
    const auto path = others / absl::StrCat("agent-", machine);
    std::error_code error;
    if (std::filesystem::exists(path, error)) paths_.push_back(path.string());
  }
  for (size_t i = 0; i < paths_.size(); ++i) loaded_.emplace_back(absl::UnknownError("not loaded"));
  missing_ = paths_.size();
  for (size_t i = 0; i < paths_.size(); ++i) {
    // Without a thread it takes the loop some milliseconds.
    if (!pool_.TryRun([this, i] { LoadOne(i); }).ok()) LoadOne(i);
  }
}

void AgentBinary::LoadOne(size_t index) {
  loaded_[index] = Load(paths_[index]);
  if (--missing_ > 0) return;
  AgentImages images;
  for (absl::StatusOr<AgentImage>& image : loaded_) {
    if (!image.ok()) return promise_.set_value(image.status());
    const bool is_own = images.empty();
    // The installation of each machine may have the same files.
    if (!is_own && image->machine == images.front().machine) continue;
    if (!is_own && !absl::EndsWith(image->path, absl::StrCat("agent-", image->machine))) {
      return promise_.set_value(absl::FailedPreconditionError(
          absl::StrCat("the agent program ", Escape(image->path), " is for another machine (",
                       image->machine.empty() ? "unknown" : image->machine,
                       ") than its name says; install dtrain again")));
    }
    images.push_back(*std::move(image));
  }
  promise_.set_value(std::move(images));
}

void AgentBinary::WhenLoaded(absl::AnyInvocable<void(const Result&)> done) {
  StartLoading();
  auto tell = std::make_shared<decltype(done)>(std::move(done));
  const auto post = [&loop = loop_, future = future_, tell] {
    future.wait();
    loop.Post([future, tell] { (*tell)(future.get()); });
  };
  // Behind the loads in the pool's queue, so it waits for them at most.
  if (!pool_.TryRun(post).ok()) post();
}

void AgentBinary::WhenPacked(const AgentImage& image, loop::Task done) {
  auto tell = std::make_shared<loop::Task>(std::move(done));
  const auto pack = [&loop = loop_, &image, tell] {
    (void)image.Packed();
    loop.Post([tell] { (*tell)(); });
  };
  if (!pool_.TryRun(pack).ok()) pack();
}

AgentPush::AgentPush(const AgentImage& image, bool packed)
    : image_(image), packed_(packed && !image.Packed().empty() ? &image.Packed() : nullptr) {
  total_ = packed_ != nullptr ? packed_->size() : image.size;
  header_ = absl::StrCat(packed_ != nullptr ? "gzip " : "plain ", total_, "\n");
}

std::string AgentPush::Next(size_t size) {
  if (!header_.empty()) return std::exchange(header_, {});
  std::string piece;
  if (packed_ != nullptr) {
    piece = packed_->substr(sent_, size);
  } else {
    piece.resize(std::min<uint64_t>(size, total_ - sent_));
    ssize_t n = pread(image_.fd.get(), piece.data(), piece.size(), static_cast<off_t>(sent_));
    piece.resize(n > 0 ? static_cast<size_t>(n) : 0);
  }
  sent_ += piece.size();
  return piece;
}

}  // namespace dtrain::transport
