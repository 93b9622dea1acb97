// SPDX-License-Identifier: Apache-2.0
#include "common/view/node_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::view {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

v1::NodeReport Report() {
  v1::NodeReport report;
  report.set_load(0.5);
  report.set_started_unix_nanos(1);
  report.set_connections(3);
  report.set_last_crash("SIGSEGV");
  report.set_last_crash_unix_nanos(1'500'000'000);
  v1::Gpu& busy = *report.mutable_inventory()->add_gpus();
  busy.set_uuid("GPU-a");
  busy.set_utilisation_percent(97);
  busy.set_withheld("held by job x of alice");
  v1::Gpu& broken = *report.mutable_inventory()->add_gpus();
  broken.set_index(1);
  broken.set_uuid("GPU-b");
  broken.set_fault("lost");
  v1::JobOnNode& job = *report.add_jobs();
  job.set_job_id("dtrain-1");
  job.set_owner("o\"dd\\\n");
  job.set_state(v1::JobOnNode::STATE_AWAY);
  return report;
}

TEST(NodeMetrics, WhatIsKnownIsTold) {
  const std::string text = NodeMetrics(Report(), "n1", false);
  EXPECT_THAT(text, HasSubstr("dtrain_node_load{host=\"n1\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("dtrain_agent_connections{host=\"n1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("dtrain_agent_last_crash_timestamp_seconds{host=\"n1\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("dtrain_node_quarantined{host=\"n1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("dtrain_gpu_utilisation_percent{host=\"n1\",gpu=\"0\","
                              "uuid=\"GPU-a\"} 97\n"));
  EXPECT_THAT(text, HasSubstr("dtrain_gpu_free{host=\"n1\",gpu=\"0\",uuid=\"GPU-a\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("dtrain_gpu_usable{host=\"n1\",gpu=\"0\",uuid=\"GPU-a\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("dtrain_gpu_usable{host=\"n1\",gpu=\"1\",uuid=\"GPU-b\"} 0\n"));
}

TEST(NodeMetrics, ANodeThatTakesNoJobsIsCounted) {
  v1::NodeReport report = Report();
  report.set_quarantine("SIGKILL does not end pid 7");
  EXPECT_THAT(NodeMetrics(report, "n1", false),
              HasSubstr("dtrain_node_quarantined{host=\"n1\"} 1\n"));
}

TEST(NodeMetrics, WhatIsNotKnownIsNotZero) {
  const std::string text = NodeMetrics(Report(), "n1", false);
  EXPECT_THAT(text, HasSubstr("# TYPE dtrain_gpu_temperature_celsius gauge\n"));
  EXPECT_THAT(text, Not(HasSubstr("dtrain_gpu_temperature_celsius{")));
  EXPECT_THAT(text, Not(HasSubstr("dtrain_gpu_utilisation_percent{host=\"n1\",gpu=\"1\"")));
}

TEST(NodeMetrics, LabelsAreEscaped) {
  EXPECT_THAT(NodeMetrics(Report(), "n1", false),
              HasSubstr("dtrain_node_job_state{host=\"n1\",job=\"dtrain-1\","
                        "owner=\"o\\\"dd\\\\\\n\",state=\"away\"} 1\n"));
}

TEST(NodeMetrics, OpenMetricsHasAnEnd) {
  EXPECT_THAT(NodeMetrics(Report(), "n1", true), EndsWith("\n# EOF\n"));
  EXPECT_THAT(NodeMetrics(Report(), "n1", false), Not(HasSubstr("EOF")));
}

}  // namespace
}  // namespace dtrain::view
