// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/slurm_job.h"

#include <gtest/gtest.h>

namespace dtrain::cli {
namespace {

TEST(SlurmJob, WhatSqueueSays) {
  EXPECT_NE(SlurmJobTrouble("slurm_load_jobs error: Invalid job id specified\n", false), "");
  EXPECT_NE(SlurmJobTrouble("", true), "");
  EXPECT_EQ(SlurmJobTrouble("RUNNING\n", true), "");
  // Nothing is known of the job then.
  EXPECT_EQ(SlurmJobTrouble("", false), "");
  EXPECT_EQ(SlurmJobTrouble("slurm_load_jobs error: Unable to contact slurm controller\n", false),
            "");
}

}  // namespace
}  // namespace dtrain::cli
