// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/job_code.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "common/base/exit_code.h"

namespace dtrain::shepherd {

void JobCode::Begin(const v1::StageTree& tree) {
  if (tree.compare_in().empty()) {
    Stage(tree);
  } else if (comparison_ == nullptr) {
    Compare(tree);
  } else {
    launcher_.Break("the launcher sent a second list of files");
  }
}

void JobCode::Compare(const v1::StageTree& tree) {
  staged::Comparison::Handlers handlers;
  handlers.on_same = [this](const std::string& sha256) { TellStaged(sha256); };
  handlers.on_failed = [this](const absl::Status& why) { OnFailed(why); };
  if (tree.only_warn()) {
    handlers.on_failed = [this, sha256 = tree.sha256()](const absl::Status& why) {
      launcher_.Warn(absl::StrCat("--verify-code: ", why.message()), /*detail=*/false);
      TellStaged(sha256);
    };
  }
  comparison_ = std::make_unique<staged::Comparison>(loop_, std::move(handlers));
  comparison_->Begin(tree);
}

void JobCode::Stage(const v1::StageTree& tree) {
  if (staging_ == nullptr) {
    staged::Staging::Handlers handlers;
    handlers.on_missing = [this](std::vector<uint32_t> files) {
      v1::JobEvent event;
      event.mutable_stage_missing()->mutable_files()->Add(files.begin(), files.end());
      launcher_.Send(event);
    };
    handlers.on_taken = [this] {
      v1::JobEvent event;
      event.mutable_stage_taken()->set_messages(1);
      launcher_.Send(event);
    };
    handlers.on_staged = [this](const std::string& sha256) { TellStaged(sha256); };
    handlers.on_failed = [this](const absl::Status& why) { OnFailed(why); };
    staging_ = std::make_unique<staged::Staging>(loop_, std::move(handlers));
    keeps_ = tree.keep();
  }
  staging_->Begin(tree);
}

void JobCode::Take(const v1::StagePieces& pieces) {
  if (staging_ != nullptr) staging_->Take(pieces);
}

bool JobCode::Place(v1::JobPart& part) const {
  const std::string at = tree();
  for (v1::Program& program : *part.mutable_programs()) {
    const std::string& folder = program.working_directory();
    if (folder.empty() || folder[0] == '/') continue;
    if (at.empty()) return false;
    program.set_working_directory(folder == "." ? at : absl::StrCat(at, "/", folder));
  }
  return true;
}

std::string JobCode::tree() const {
  return staging_ != nullptr && staging_->is_done() ? staging_->path() : "";
}

absl::Status JobCode::Remove(const v1::JobPart& part) {
  if (staging_ == nullptr) return absl::OkStatus();
  if (!keeps_ || tree().empty() || part.job_id().empty()) return staging_->Remove();
  const auto kept = staging_->Keep(absl::StrCat(part.job_id(), "-", part.attempt()));
  if (!kept.ok()) return kept.status();
  // The same on all hosts, so that it is one line for all.
  launcher_.Warn(absl::StrCat("the code and what was written beside it are kept for 30 days in ",
                              *kept, " (--stage-keep); remove it with rm -r"));
  return absl::OkStatus();
}

void JobCode::TellStaged(const std::string& sha256) {
  v1::JobEvent event;
  event.mutable_staged()->set_sha256(sha256);
  launcher_.Send(event);
}

void JobCode::OnFailed(const absl::Status& why) {
  launcher_.SendFailure(MakeFailure(
      v1::NodeFailure::KIND_STATE, kExitStartAgents,
      absl::StrCat(comparison_ == nullptr ? "cannot stage the code: " : "--verify-code: ",
                   why.message())));
  on_failed_();
}

}  // namespace dtrain::shepherd
