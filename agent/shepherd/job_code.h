// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/shepherd/launcher_line.h"
#include "agent/stage/comparison.h"
#include "agent/stage/staging.h"
#include "common/loop/loop.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// The code of a job that is launched with --stage or --verify-code: the launcher sends it, or what
// it should be, before the start. Without either all of this is nothing. Loop thread.
class JobCode {
 public:
  // `on_failed`: it cannot be had, or is another; the launcher has been told.
  JobCode(loop::Loop& loop, LauncherLine& launcher, loop::Task on_failed)
      : loop_(loop), launcher_(launcher), on_failed_(std::move(on_failed)) {}

  void Begin(const v1::StageTree& tree);
  void Take(const v1::StagePieces& pieces);
  // Workers whose directory is relative run in the staged tree. False: it is not there.
  bool Place(v1::JobPart& part) const;
  // The absolute path of the staged tree; empty if nothing was staged.
  std::string tree() const;
  // The workers have ended, of that part; an empty one: none has begun.
  absl::Status Remove(const v1::JobPart& part);

 private:
  void Compare(const v1::StageTree& tree);
  void Stage(const v1::StageTree& tree);
  void TellStaged(const std::string& sha256);
  void OnFailed(const absl::Status& why);

  loop::Loop& loop_;
  LauncherLine& launcher_;
  loop::Task on_failed_;
  bool keeps_ = false;  // the tree stays
  // Null: not of this job.
  std::unique_ptr<staged::Staging> staging_;
  std::unique_ptr<staged::Comparison> comparison_;
};

}  // namespace dtrain::shepherd
