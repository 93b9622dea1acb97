// SPDX-License-Identifier: Apache-2.0
// What belongs to one channel of a session and comes on the other must be read as nothing.
#include <gtest/gtest.h>

#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/session.pb.h"

namespace dtrain {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

void ExpectOnlyTheSameMessagesShareNumbers(const Descriptor& agents, const Descriptor& jobs) {
  ASSERT_GT(agents.field_count(), 0);
  for (int i = 0; i < agents.field_count(); ++i) {
    const FieldDescriptor& field = *agents.field(i);
    const FieldDescriptor* other = jobs.FindFieldByNumber(field.number());
    if (other == nullptr) continue;
    ASSERT_NE(field.message_type(), nullptr) << field.full_name();
    EXPECT_EQ(field.message_type(), other->message_type())
        << field.full_name() << " and " << other->full_name();
  }
}

TEST(Channels, NumbersAreSharedByTheSameMessagesOnly) {
  ExpectOnlyTheSameMessagesShareNumbers(*v1::SessionRequest::descriptor(),
                                        *v1::JobRequest::descriptor());
  ExpectOnlyTheSameMessagesShareNumbers(*v1::SessionEvent::descriptor(),
                                        *v1::JobEvent::descriptor());
}

}  // namespace
}  // namespace dtrain
