// SPDX-License-Identifier: Apache-2.0
// F4: a journal that was cut anywhere, or damaged anywhere.
#include "launcher/journal/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/journal/frame.h"
#include "tests/unit/journal/job_story.h"

namespace dtrain::journal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint8_t kBeginsBatch = 0x80;

// Where each record of a journal begins, and its end.
std::vector<size_t> Bounds(absl::string_view bytes) {
  std::vector<size_t> bounds = {0};
  while (bounds.back() < bytes.size()) {
    bounds.push_back(bounds.back() + CutFrame(bytes.substr(bounds.back()))->size());
  }
  return bounds;
}

TEST(JournalRecords, AreReadAsTheyWereWritten) {
  const std::string bytes = Written(Story());
  const auto read = Read(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->header.job_id(), "job-1");
  EXPECT_EQ(read->header.build(), "1.0");
  EXPECT_EQ(read->records, Story().size());
  EXPECT_EQ(read->good_bytes, bytes.size());
  EXPECT_TRUE(Same(read->state, StateAfter(Story())));
  EXPECT_THAT(read->warnings, IsEmpty());
}

TEST(JournalRecords, CutAtEachByteTheWholeOnesCount) {
  const std::string bytes = Written(Story());
  const std::vector<size_t> bounds = Bounds(bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    const auto read = Read(bytes.substr(0, size));
    // The header and what follows are on disk before anything is acknowledged.
    if (size < bounds[2]) {
      EXPECT_TRUE(absl::IsDataLoss(read.status())) << read.status();
      continue;
    }
    ASSERT_TRUE(read.ok()) << read.status();
    const size_t whole = std::upper_bound(bounds.begin(), bounds.end(), size) - bounds.begin() - 1;
    EXPECT_EQ(read->good_bytes, bounds[whole]);
    ASSERT_EQ(read->records, whole - 1);
    const auto story = Story();
    EXPECT_TRUE(Same(read->state, StateAfter({story.begin(), story.begin() + read->records})));
    EXPECT_EQ(read->warnings.size(), size == bounds[whole] ? 0 : 1);
  }
}

// As ext4 and XFS may leave a file that grew before the power was cut.
TEST(JournalRecords, ZerosAtTheEndAreCut) {
  const std::string bytes = Written({AcceptedRecord(), Generation(1)});
  for (const size_t zeros : {1, 8, 9, 10, 4096}) {
    const auto read = Read(bytes + std::string(zeros, '\0'));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->good_bytes, bytes.size());
    EXPECT_THAT(read->warnings, ElementsAre(HasSubstr("written only in part")));
  }
}

// Each record had been synced: only the last may be what a crash has left.
TEST(JournalRecords, EachFlippedBitIsDamageUnlessItIsInTheLastRecord) {
  const std::string bytes = Written(Story());
  const std::vector<size_t> bounds = Bounds(bytes);
  const size_t last = bounds[bounds.size() - 2];
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    SCOPED_TRACE(bit);
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const auto read = Read(damaged);
    if (bit / 8 < last) {
      EXPECT_TRUE(absl::IsDataLoss(read.status())) << read.status();
      continue;
    }
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->good_bytes, last);
    EXPECT_EQ(read->records, Story().size() - 1);
  }
}

// The power was cut before the last batch was synced: any part of it may be on disk.
TEST(JournalRecords, AnyPartOfTheLastBatchMayBeMissing) {
  const std::string before = Written({AcceptedRecord(), Generation(1)});
  std::string batch;
  for (const JournalRecord& record : {Begins(0, 1), Runs(0), Exit(0, 0, 0), Exit(0, 0, 1)}) {
    ASSERT_TRUE(AppendRecord(record, batch.empty(), &batch).ok());
  }
  for (size_t from = 0; from < batch.size(); ++from) {
    for (size_t size = 1; size <= batch.size() - from; size += 7) {
      std::string damaged = batch;
      damaged.replace(from, size, std::string(size, '\0'));
      if (damaged == batch) continue;  // there were zeros
      const auto read = Read(before + damaged);
      ASSERT_TRUE(read.ok()) << from << " " << size << " " << read.status();
      EXPECT_LE(read->good_bytes, before.size() + from + size);
      EXPECT_GE(read->good_bytes, before.size());
    }
  }
}

TEST(JournalRecords, OneThatWasSyncedBehindTheDamageTellsThatItIsDamage) {
  std::string bytes = Written({AcceptedRecord(), Generation(1)}, /*each_synced=*/false);
  bytes[bytes.size() - 1] ^= 1;
  EXPECT_TRUE(Read(bytes).ok());
  std::string same_batch = bytes;
  ASSERT_TRUE(AppendRecord(Generation(3), false, &same_batch).ok());
  EXPECT_TRUE(Read(same_batch).ok());
  ASSERT_TRUE(AppendRecord(Generation(3), true, &bytes).ok());
  const auto read = Read(bytes);
  EXPECT_TRUE(absl::IsDataLoss(read.status()));
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("it is damaged at byte "));
}

TEST(JournalRecords, OfANewerVersionAreIgnoredWithAWarning) {
  for (const uint8_t kind : {18, 100}) {
    // As Protobuf writes a field that is not known here.
    const std::string tag = kind < 16 ? std::string(1, static_cast<char>(kind << 3 | 2))
                                      : std::string({static_cast<char>((kind << 3 | 2) | 0x80),
                                                     static_cast<char>(kind >> 4)});
    std::string bytes = Written({AcceptedRecord()});
    AppendFrame(kind | kBeginsBatch, tag + std::string("\x03xyz"), &bytes);
    ASSERT_TRUE(AppendRecord(Generation(1), true, &bytes).ok());
    const auto read = Read(bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->unknown, 1);
    EXPECT_EQ(read->state.launcher().generation(), 1);
    EXPECT_THAT(read->warnings, ElementsAre(HasSubstr("1 record of a newer dtrain (1.0)")));
  }
}

TEST(JournalRecords, ANewerVersionOfTheFormatIsNotRead) {
  JournalRecord header = Header("job-1", "9.9");
  header.mutable_header()->set_version(kVersion + 1);
  std::string bytes;
  ASSERT_TRUE(AppendRecord(header, true, &bytes).ok());
  const auto read = Read(bytes);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("a newer dtrain (9.9)"));
}

TEST(JournalRecords, AnotherFileIsNoJournal) {
  JournalRecord header = Header("job-1", "1.0");
  header.mutable_header()->set_magic("something else");
  std::string bytes;
  ASSERT_TRUE(AppendRecord(header, true, &bytes).ok());
  EXPECT_TRUE(absl::IsDataLoss(Read(bytes).status()));
  for (const std::string& text : {std::string(),
                                  std::string("\x7f"
                                              "ELF"),
                                  std::string(1000, 'a')}) {
    EXPECT_TRUE(absl::IsDataLoss(Read(text).status()));
  }
}

TEST(JournalRecords, TheHeaderIsFirstAndOnlyFirst) {
  std::string bytes = Written({AcceptedRecord()});
  ASSERT_TRUE(AppendRecord(Header("job-1", "1.0"), true, &bytes).ok());
  EXPECT_THAT(std::string(Read(bytes).status().message()), HasSubstr("a second header"));
  std::string none;
  ASSERT_TRUE(AppendRecord(AcceptedRecord(), true, &none).ok());
  EXPECT_THAT(std::string(Read(none).status().message()), HasSubstr("must begin with its header"));
}

TEST(JournalRecords, OutOfOrderAreAnErrorThatNamesThem) {
  const auto read = Read(Written({AcceptedRecord(), Generation(1), Runs(0)}));
  EXPECT_TRUE(absl::IsDataLoss(read.status()));
  EXPECT_THAT(std::string(read.status().message()),
              testing::MatchesRegex("the record at byte [0-9]+: out of order: the attempt runs, "
                                    "and the job is accepted"));
}

TEST(JournalRecords, TooLongForAFrameIsRefused) {
  const JournalRecord record = Stop(std::string(kMostPayload, 'x'));
  std::string bytes;
  EXPECT_TRUE(absl::IsResourceExhausted(AppendRecord(record, true, &bytes)));
  EXPECT_TRUE(absl::IsResourceExhausted(CheckRecord(record)));
  EXPECT_FALSE(AppendRecord(JournalRecord(), true, &bytes).ok());
  EXPECT_FALSE(CheckRecord(JournalRecord()).ok());
  EXPECT_EQ(bytes, "");
}

TEST(JournalRecords, WhatCouldNotBeReadAgainIsRefused) {
  EXPECT_TRUE(CheckRecord(Stop("any \xff text")).ok());
  const auto read = Read(Written({AcceptedRecord(), Stop("any \xff text")}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->state.stop().by(), "any \xff text");
  EXPECT_EQ(CheckRecord(Begins(0, 1, {"host\xff"})).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dtrain::journal
