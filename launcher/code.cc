// SPDX-License-Identifier: Apache-2.0
#include "launcher/code.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"
#include "launcher/stage/piece.h"

namespace dtrain {
namespace {

// Where hashes of unchanged files are cached. Empty: nowhere.
std::string HashFolder() {
  const char* cache = getenv("XDG_CACHE_HOME");
  const char* home = getenv("HOME");
  std::string folder;
  if (cache != nullptr && cache[0] == '/') {
    folder = absl::StrCat(cache, "/dtrain/stage/hashes");
  } else if (home != nullptr && home[0] == '/') {
    folder = absl::StrCat(home, "/.cache/dtrain/stage/hashes");
  }
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  return error ? "" : folder;
}

}  // namespace

std::shared_ptr<const v1::JobRequest> Code::Request() const {
  auto request = std::make_shared<v1::JobRequest>();
  request->mutable_stage()->set_manifest(snapshot.manifest);
  request->mutable_stage()->set_sha256(snapshot.sha256);
  if (compare) request->mutable_stage()->set_compare_in(snapshot.directory);
  request->mutable_stage()->set_only_warn(only_warn);
  request->mutable_stage()->set_keep(keep);
  return request;
}

absl::Status Code::Keep(const detached::JobFolder& folder, bool with_contents,
                        detached::Beat beat) {
  absl::Status copied;
  if (with_contents && !compare) copied = contents.CopyTo(folder.CodeContents(), beat);
  if (!copied.ok()) return copied;
  v1::StagedCode kept;
  kept.set_manifest(snapshot.manifest);
  kept.set_git(snapshot.git);
  return folder.WriteCode(kept);
}

absl::StatusOr<std::unique_ptr<Code>> TakeCode(const stage::Options& options) {
  auto snapshot = stage::TakeSnapshot(options, HashFolder());
  if (!snapshot.ok()) return snapshot.status();
  return std::make_unique<Code>(*std::move(snapshot), options);
}

std::optional<std::string> InTree(const std::string& directory, const std::string& staged) {
  std::error_code error;
  const auto inside = std::filesystem::weakly_canonical(directory, error);
  const auto top = std::filesystem::weakly_canonical(staged, error);
  const std::string relative = inside.lexically_relative(top).string();
  if (relative.empty() || relative == ".." || relative.compare(0, 3, "../") == 0) {
    return std::nullopt;
  }
  return relative;
}

absl::Status CodeSender::OnEvent(NodeId node, const v1::JobEvent& event) {
  if (event.has_stage_missing()) {
    const auto& files = event.stage_missing().files();
    return distribution_.OnMissing(node, {files.begin(), files.end()});
  }
  if (event.has_stage_taken()) {
    return distribution_.OnTaken(node, event.stage_taken().messages());
  }
  return distribution_.OnStaged(node);
}

std::optional<CodeSender::Sending> CodeSender::Next() {
  auto next = distribution_.Next();
  if (!next) return std::nullopt;
  Sending sending;
  sending.message.nodes = std::move(next->nodes);
  v1::StagePieces& pieces = *sending.message.request.mutable_stage_pieces();
  for (const stage::Distribution::Piece& each : next->pieces) {
    v1::StagePiece& piece = *pieces.add_pieces();
    piece.set_file(each.file);
    auto bytes = code_.contents.Read(each.file, each.offset, each.size);
    // Nodes see that these are not its bytes.
    if (!bytes.ok()) {
      sending.warning = absl::StrCat("dtrain: warning: ", bytes.status().message());
      bytes = std::string(each.size, '\0');
    }
    stage::Fill(piece, *std::move(bytes));
  }
  return sending;
}

std::string CodeSender::Sent(TimePoint now) const {
  const std::string took =
      absl::StrFormat("%.1f s", std::chrono::duration<double>(now - begin_).count());
  if (code_.only_warn) return absl::StrCat("compared on all hosts in ", took);
  if (distribution_.files_sent() == 0) return absl::StrCat("on all hosts, checked in ", took);
  return absl::StrCat(Count(distribution_.files_sent(), "file"), " sent to ",
                      Count(distribution_.nodes_sent_to(), "host"), " in ", took);
}

}  // namespace dtrain
