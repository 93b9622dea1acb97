// SPDX-License-Identifier: Apache-2.0
// J5, G11, H5: each byte of output is in the files once, whatever crashes.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "launcher/detached/log_reader.h"
#include "launcher/detached/log_segments.h"
#include "launcher/detached/log_store.h"
#include "tests/component/detached/disk_fixture.h"

namespace dtrain::detached {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const LogStream kOut{Rank(3), false};
const LogStream kErr{Rank(3), true};

std::string Text(uint64_t offset, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + (offset + i) % 26);
  return text;
}

std::string ReadAll(const std::string& folder, LogStream stream, uint64_t from = 0,
                    size_t limit = 1000) {
  LogReader reader(folder, stream, from);
  std::string all;
  for (;;) {
    auto next = reader.Next(limit);
    EXPECT_TRUE(next.ok()) << next.status();
    if (!next.ok() || next->empty()) return all;
    EXPECT_TRUE(next->size() <= limit || (*next)[0] == '[');
    all += *next;
  }
}

class SegmentsTest : public DiskTest {
 protected:
  SegmentsTest() : logs_(dir_ + "/logs") {}
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(logs_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string logs_;
};

TEST_F(SegmentsTest, AreNamedByTheirFirstByte) {
  LogSegments segments({logs_, {}, 0}, 10);
  ASSERT_TRUE(segments.Open({}).ok());
  ASSERT_TRUE(segments.Write(kOut, 0, Text(0, 7)).ok());
  ASSERT_TRUE(segments.Write(kOut, 7, Text(7, 18)).ok());
  ASSERT_TRUE(segments.Write(kErr, 0, "x").ok());
  ASSERT_TRUE(segments.Sync().ok());
  EXPECT_THAT(Files(), ElementsAre("rank-00003.err.0", "rank-00003.out.0", "rank-00003.out.10",
                                   "rank-00003.out.20"));
  for (const size_t limit : {1, 3, 1000}) {
    EXPECT_EQ(ReadAll(logs_, kOut, 0, limit), Text(0, 25));
    EXPECT_EQ(ReadAll(logs_, kOut, 12, limit), Text(12, 13));
  }
  EXPECT_EQ(ReadAll(logs_, kErr), "x");
  EXPECT_EQ(ReadAll(logs_, {Rank(0), false}), "");
  EXPECT_EQ(ReadAll(dir_ + "/none", kOut), "");
}

TEST_F(SegmentsTest, OnlyWhatWasSyncedStays) {
  for (const uint64_t synced : {0, 1, 9, 10, 11, 20, 24, 25}) {
    SCOPED_TRACE(synced);
    fs::remove_all(logs_);
    {
      LogSegments segments({logs_, {}, 0}, 10);
      ASSERT_TRUE(segments.Open({}).ok());
      ASSERT_TRUE(segments.Write(kOut, 0, Text(0, 25)).ok());
      ASSERT_TRUE(segments.Write(kErr, 0, "never synced").ok());
    }
    LogSegments segments({logs_, {}, 0}, 10);
    ASSERT_TRUE(segments.Open({{kOut, synced}}).ok());
    EXPECT_EQ(ReadAll(logs_, kOut), Text(0, synced));
    EXPECT_EQ(ReadAll(logs_, kErr), "");
    ASSERT_TRUE(segments.Write(kOut, synced, Text(synced, 40 - synced)).ok());
    EXPECT_EQ(ReadAll(logs_, kOut), Text(0, 40));
  }
}

TEST_F(SegmentsTest, WhatIsMissingIsCounted) {
  LogSegments segments({logs_, {}, 0}, 10);
  ASSERT_TRUE(segments.Open({}).ok());
  ASSERT_TRUE(segments.Write(kOut, 0, "first").ok());
  ASSERT_TRUE(segments.Write(kOut, 105, "last").ok());  // the node has dropped the rest
  EXPECT_EQ(ReadAll(logs_, kOut), "first[dtrain: 100 bytes are no longer available]\nlast");
  EXPECT_EQ(ReadAll(logs_, kOut, 100), "[dtrain: 5 bytes are no longer available]\nlast");
}

TEST_F(SegmentsTest, OldOnesGoButTheFirstOfEach) {
  const uint64_t limit = 100;
  LogSegments segments({logs_, {}, limit}, 10);
  ASSERT_TRUE(segments.Open({}).ok());
  for (uint64_t at = 0; at < 500; at += 5) {
    ASSERT_TRUE(segments.Write(kOut, at, Text(at, 5)).ok());
    if (at < 20) {
      ASSERT_TRUE(segments.Write(kErr, at, Text(at, 5)).ok());
    }
    uint64_t bytes = 0;
    for (const std::string& name : Files()) bytes += fs::file_size(logs_ + "/" + name);
    ASSERT_LE(bytes, limit);
  }
  EXPECT_EQ(ReadAll(logs_, kErr), Text(0, 20));
  const std::string out = ReadAll(logs_, kOut);
  EXPECT_THAT(out, testing::MatchesRegex(Text(0, 10) +
                                         "\\[dtrain: [0-9]+ bytes are no longer "
                                         "available\\]\n[a-z]+" +
                                         Text(450, 50)));
  // Another launcher goes on by the same rule.
  LogSegments again({logs_, {}, limit}, 10);
  ASSERT_TRUE(again.Open({{kOut, 500}, {kErr, 20}}).ok());
  ASSERT_TRUE(again.Write(kOut, 500, Text(500, 500)).ok());
  EXPECT_LE(Files().size(), 14u);
  EXPECT_THAT(ReadAll(logs_, kOut), testing::EndsWith(Text(950, 50)));
}

TEST_F(SegmentsTest, AreSmallWhereThereAreManyStreams) {
  const uint64_t limit = uint64_t{4} << 30;
  EXPECT_EQ(SegmentBytes(0, 100000), 64 << 20);
  EXPECT_EQ(SegmentBytes(limit, 0), 64 << 20);
  EXPECT_EQ(SegmentBytes(limit, 8), 64 << 20);
  EXPECT_EQ(SegmentBytes(limit, 1024), 512 << 10);
  EXPECT_EQ(SegmentBytes(1, 1024), 4 << 10);
}

TEST_F(SegmentsTest, OfEarlierAttemptsTheMiddleGoesFirstAndThenAll) {
  const auto folder = [this](int attempt) { return absl::StrCat(dir_, "/logs/", attempt); };
  ASSERT_TRUE(fs::create_directory(logs_));
  fs::permissions(logs_, fs::perms::owner_all);
  {
    LogSegments first({folder(0), {}, 100}, 10);
    ASSERT_TRUE(first.Open({}).ok());
    ASSERT_TRUE(first.Write(kOut, 0, Text(0, 55)).ok());
    ASSERT_TRUE(first.Write(kErr, 0, Text(0, 5)).ok());
  }
  LogSegments second({folder(1), {folder(0)}, 100}, 10);
  ASSERT_TRUE(second.Open({}).ok());
  ASSERT_TRUE(second.Write(kOut, 0, Text(0, 70)).ok());
  EXPECT_EQ(ReadAll(folder(0), kOut),
            Text(0, 10) + "[dtrain: 30 bytes are no longer available]\n" + Text(40, 15));
  EXPECT_EQ(ReadAll(folder(1), kOut), Text(0, 70));
  ASSERT_TRUE(second.Write(kOut, 70, Text(70, 20)).ok());
  EXPECT_EQ(ReadAll(folder(0), kOut),
            Text(0, 10) + "[dtrain: 40 bytes are no longer available]\n" + Text(50, 5));
  EXPECT_EQ(ReadAll(folder(1), kOut),
            Text(0, 10) + "[dtrain: 10 bytes are no longer available]\n" + Text(20, 70));
  // Whoever takes the job over counts the same. The third attempt has streams enough for all.
  LogSegments third({folder(2), {folder(0), folder(1)}, 100}, 10);
  ASSERT_TRUE(third.Open({}).ok());
  for (uint32_t rank = 0; rank < 5; ++rank) {
    ASSERT_TRUE(third.Write({Rank(rank), false}, 0, Text(0, 20)).ok());
  }
  EXPECT_EQ(ReadAll(folder(0), kOut), "[dtrain: 55 bytes are no longer available]\n");
  EXPECT_EQ(ReadAll(folder(0), kErr), "[dtrain: 5 bytes are no longer available]\n");
  EXPECT_EQ(ReadAll(folder(1), kOut, 0), "[dtrain: 90 bytes are no longer available]\n");
  for (uint32_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(ReadAll(folder(2), {Rank(rank), false}), Text(0, 20));
  }
}

TEST_F(SegmentsTest, WhatIsCutAndGrowsAgainIsNotRemoved) {
  LogSegments segments({logs_, {}, 40}, 10);
  ASSERT_TRUE(segments.Open({}).ok());
  ASSERT_TRUE(segments.Write(kOut, 0, Text(0, 35)).ok());
  // As after a failed write: the second segment is the last again, and was complete once.
  ASSERT_TRUE(segments.CutTo(kOut, 15).ok());
  ASSERT_TRUE(segments.Write(kErr, 0, Text(0, 25)).ok());
  EXPECT_EQ(ReadAll(logs_, kOut), Text(0, 15));
  ASSERT_TRUE(segments.Write(kOut, 15, Text(15, 15)).ok());
  EXPECT_THAT(ReadAll(logs_, kOut), testing::EndsWith(Text(20, 10)));
}

// A job of four ranks that is restarted, whose launchers are killed, and whose readers look now and
// then: no more than the limit is kept, and what a reader got and what it was told is missing are
// together what was written.
TEST_F(SegmentsTest, WhatIsReadAndWhatIsMissingIsAll) {
  uint32_t seed = 1;
  if (const char* given = getenv("DTRAIN_SEED")) (void)absl::SimpleAtoi(given, &seed);
  SCOPED_TRACE(testing::Message() << "DTRAIN_SEED=" << seed);
  std::mt19937 random(seed);
  const auto pick = [&](uint32_t below) {
    return std::uniform_int_distribution<uint32_t>(0, below - 1)(random);
  };
  constexpr uint32_t kRanks = 4;
  constexpr uint64_t kSegment = 100;
  constexpr uint64_t kLimit = kSegment * 2 * 2 * kRanks * 2;  // as SegmentBytes has it
  ASSERT_TRUE(fs::create_directory(logs_));
  fs::permissions(logs_, fs::perms::owner_all);
  const auto folder = [this](size_t attempt) { return absl::StrCat(logs_, "/", attempt); };
  const auto all_bytes = [this] {
    uint64_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(logs_)) {
      if (entry.is_regular_file()) bytes += entry.file_size();
    }
    return bytes;
  };
  // Different ones in each attempt and stream.
  const auto content = [](size_t attempt, const LogStream& stream, uint64_t offset, size_t size) {
    return Text(offset + 7 * attempt + 3 * stream.rank.value() + (stream.is_stderr ? 11 : 0), size);
  };
  uint64_t missing_in_all = 0;
  const auto look = [&](LogReader& reader, size_t attempt, const LogStream& stream) {
    const uint64_t before = reader.offset();
    const auto next = reader.Next(1 + pick(300));
    ASSERT_TRUE(next.ok()) << next.status();
    const uint64_t size = reader.offset() - before;
    if (absl::StartsWith(*next, "[")) {
      ASSERT_EQ(*next, absl::StrCat("[dtrain: ", size, " bytes are no longer available]\n"));
      missing_in_all += size;
    } else {
      ASSERT_EQ(*next, content(attempt, stream, before, size));
    }
  };
  std::vector<LogOffsets> ends(1);  // of each attempt
  LogOffsets journalled;
  std::vector<std::map<LogStream, LogReader>> readers(1);
  for (int life = 0; life < 60; ++life) {
    if (life > 0 && pick(4) == 0) {  // the attempt has ended: all of it is on disk
      journalled.clear();
      ends.emplace_back();
      readers.emplace_back();
    } else {
      ends.back() = journalled;
    }
    const size_t attempt = ends.size() - 1;
    LogPlace place{folder(attempt), {}, kLimit};
    for (size_t before = 0; before < attempt; ++before) place.earlier.push_back(folder(before));
    if (attempt > 0 && pick(3) == 0) {  // a launcher was killed within the removal of one of those
      const size_t of = pick(static_cast<uint32_t>(attempt));
      const auto streams = ListSegments(folder(of));
      ASSERT_TRUE(streams.ok());
      for (const auto& [stream, list] : *streams) {
        const std::ofstream made(
            absl::StrCat(folder(of), "/", SegmentName(stream, list.back().end())), std::ios::app);
        break;
      }
    }
    LogSegments segments(place, kSegment);
    ASSERT_TRUE(segments.Open(journalled).ok());
    LogOffsets& written = ends.back();
    for (uint32_t steps = 1 + pick(40); steps > 0; --steps) {
      const LogStream stream{Rank(pick(kRanks)), pick(3) == 0};
      uint64_t& at = written[stream];
      const uint32_t size = 1 + pick(250);
      ASSERT_TRUE(segments.Write(stream, at, content(attempt, stream, at, size)).ok());
      at += size;
      ASSERT_LE(all_bytes(), kLimit);
      ASSERT_TRUE(fs::exists(absl::StrCat(folder(attempt), "/", SegmentName(stream, 0))));
      if (pick(5) == 0) {
        ASSERT_TRUE(segments.Sync().ok());
        journalled = written;
      }
      const size_t of = pick(static_cast<uint32_t>(ends.size()));
      const LogStream other{Rank(pick(kRanks)), pick(2) == 0};
      LogReader& reader = readers[of].try_emplace(other, folder(of), other).first->second;
      ASSERT_NO_FATAL_FAILURE(look(reader, of, other));
    }
  }
  EXPECT_GT(ends.size(), 5u);
  for (size_t attempt = 0; attempt < ends.size(); ++attempt) {
    for (const auto& [stream, end] : ends[attempt]) {
      LogReader fresh(folder(attempt), stream);
      readers[attempt].try_emplace(stream, folder(attempt), stream);
      for (LogReader* reader : {&fresh, &readers[attempt].at(stream)}) {
        for (int tries = 0; reader->offset() < end && tries < 10000; ++tries) {
          ASSERT_NO_FATAL_FAILURE(look(*reader, attempt, stream));
        }
        // One that was there all the time may have had what a crash has cut.
        if (reader == &fresh) {
          EXPECT_EQ(reader->offset(), end);
        } else {
          EXPECT_GE(reader->offset(), end);
        }
      }
    }
  }
  EXPECT_GT(missing_in_all, 1000u);
}

TEST_F(SegmentsTest, StrangeFilesAreLeftAlone) {
  fs::create_directories(logs_ + "/rank-00001.out.7");
  fs::permissions(logs_, fs::perms::owner_all);
  for (const char* name : {"notes", "rank-00003.out", "rank-x.out.0", "rank-00003.log.0",
                           "rank-00003.out.-1", "rank-00003.out.99999999999999999999"}) {
    WriteFile(logs_ + "/" + name, "mine");
  }
  LogSegments segments({logs_, {}, 10}, 10);
  ASSERT_TRUE(segments.Open({}).ok());
  ASSERT_TRUE(segments.Write(kOut, 0, Text(0, 100)).ok());
  EXPECT_EQ(ReadFile(logs_ + "/rank-00003.out"), "mine");
  EXPECT_THAT(ReadAll(logs_, kOut), testing::StartsWith(Text(0, 10)));
}

// A node that has the whole stream, a launcher that is killed or whose machine loses power, and a
// reader that was there all the time.
TEST_F(SegmentsTest, EachByteIsThereOnceAfterRandomCrashes) {
  uint32_t seed = 1;
  if (const char* given = getenv("DTRAIN_SEED")) (void)absl::SimpleAtoi(given, &seed);
  SCOPED_TRACE(testing::Message() << "DTRAIN_SEED=" << seed);
  std::mt19937 random(seed);
  const auto pick = [&](uint32_t below) {
    return std::uniform_int_distribution<uint32_t>(0, below - 1)(random);
  };
  LogOffsets journalled;
  LogReader reader(logs_, kOut);
  std::string seen;
  for (int life = 0; life < 60; ++life) {
    LogSegments segments({logs_, {}, 0}, 50);
    ASSERT_TRUE(segments.Open(journalled).ok());
    LogOffsets written = journalled;
    for (uint32_t steps = pick(20); steps > 0; --steps) {
      const LogStream stream = pick(3) == 0 ? kErr : kOut;
      const std::string piece = Text(written[stream], pick(70));
      ASSERT_TRUE(segments.Write(stream, written[stream], piece).ok());
      written[stream] += piece.size();
      if (pick(4) == 0) {
        ASSERT_TRUE(segments.Sync().ok());
        if (pick(4) != 0) journalled = written;  // else it is killed before
      }
      auto next = reader.Next(100);
      ASSERT_TRUE(next.ok());
      seen += *next;
    }
    if (pick(2) == 0) continue;
    // The power is cut: of what was not synced anything may be left.
    const auto streams = ListSegments(logs_);
    ASSERT_TRUE(streams.ok());
    for (const auto& [stream, list] : *streams) {
      for (const LogSegment& segment : list) {
        const uint64_t safe = std::max(journalled[stream], segment.begin) - segment.begin;
        if (safe >= segment.size) continue;
        const std::string path = logs_ + "/" + SegmentName(stream, segment.begin);
        if (pick(2) == 0) {
          fs::resize_file(path, safe + pick(static_cast<uint32_t>(segment.size - safe)));
        } else {
          fs::resize_file(path, safe);
          fs::resize_file(path, segment.size);  // zeros
        }
      }
    }
  }
  for (const LogStream& stream : {kOut, kErr}) {
    const std::string all = ReadAll(logs_, stream);
    EXPECT_GE(all.size(), journalled[stream]);
    EXPECT_EQ(all.substr(0, journalled[stream]), Text(0, journalled[stream]));
  }
  EXPECT_GT(journalled[kOut], 3000);
}

class LogStoreTest : public JournalDiskTest {
 protected:
  LogStoreTest() : logs_(dir_ + "/logs") {}
  void Begin(const std::string& folder) {
    logs_ = folder + "/logs";
    journal_path_ = Create(folder);
    journal_ = Open(journal_path_);
    Write(*journal_, Generation(1));
    Write(*journal_, Begins());
    OpenStore();
  }
  void OpenStore() {
    store_ = std::make_unique<LogStore>(
        loop_, *journal_, LogPlace{logs_},
        LogStore::Callbacks{
            [this](const v1::LogPositions& positions) {
              for (const v1::LogPosition& at : positions.streams()) {
                const bool is_stderr = at.stream() == v1::STREAM_KIND_STDERR;
                told_[{Rank(at.rank()), is_stderr}] = at.offset();
                // Before a node is told, it is in the journal, and in the file.
                const auto read = JournalFile::Read(journal_path_);
                ASSERT_TRUE(read.ok()) << read.status();
                EXPECT_TRUE(std::any_of(read->state.logs_safe().begin(),
                                        read->state.logs_safe().end(), [&](const auto& safe) {
                                          return safe.rank() == at.rank() &&
                                                 safe.stream() == at.stream() &&
                                                 safe.offset() >= at.offset();
                                        }));
                const auto files = ListSegments(logs_);
                ASSERT_TRUE(files.ok()) << files.status();
                EXPECT_GE(files->at({Rank(at.rank()), is_stderr}).back().end(), at.offset());
              }
            },
            [this](absl::Status status) { log_troubles_.push_back(std::move(status)); }, nullptr});
    const absl::Status opened = store_->Open();
    ASSERT_TRUE(opened.ok()) << opened;
  }
  // As after kill -9.
  void Restart() {
    store_.reset();
    journal_.reset();
    journal_ = Open(journal_path_);
    OpenStore();
  }
  void Flush() {
    bool done = false;
    store_->Flush([&] { done = true; });
    RunUntil([&] { return done; });
    EXPECT_EQ(store_->queued_bytes(), 0);
  }

  std::string logs_;
  std::string journal_path_;
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<LogStore> store_;
  LogOffsets told_;
  std::vector<absl::Status> log_troubles_;
};

TEST_F(LogStoreTest, TellsWhatIsSafe) {
  Begin(dir_);
  store_->Write(kOut, 0, Text(0, 100));
  store_->Write(kErr, 0, Text(0, 10));
  EXPECT_EQ(store_->queued_bytes(), 110);
  // Without being asked, within its time.
  RunUntil([&] { return told_[kOut] == 100 && told_[kErr] == 10; });
  EXPECT_EQ(store_->queued_bytes(), 0);
  EXPECT_EQ(store_->end(kOut), 100);
  EXPECT_EQ(store_->end({Rank(0), false}), 0);
}

TEST_F(LogStoreTest, CanBeReadBeforeItIsSafe) {
  Begin(dir_);
  store_->Write(kOut, 0, Text(0, 100));
  RunUntil([&] { return ReadAll(logs_, kOut) == Text(0, 100); });
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(LogStoreTest, MuchIsSyncedBeforeItsTime) {
  Begin(dir_);
  const TimePoint begin = loop_.Now();
  uint64_t at = 0;
  for (; at < kSyncLogBytes; at += 1 << 20) store_->Write(kOut, at, std::string(1 << 20, 'x'));
  RunUntil([&] { return told_[kOut] > 0; });
  if (loop_.Now() - begin < kSyncLogsEvery / 2) {
    EXPECT_EQ(told_[kOut], at);
  }
}

TEST_F(LogStoreTest, BytesThatComeAgainAreTakenOnce) {
  Begin(dir_);
  store_->Write(kOut, 0, Text(0, 50));
  store_->Write(kOut, 20, Text(20, 10));
  store_->Write(kOut, 30, Text(30, 50));
  store_->Write(kOut, 80, "");
  Flush();
  EXPECT_EQ(ReadAll(logs_, kOut), Text(0, 80));
  EXPECT_EQ(told_[kOut], 80);
}

TEST_F(LogStoreTest, ASuccessorAsksForTheRest) {
  Begin(dir_);
  store_->Write(kOut, 0, Text(0, 50));
  Flush();
  store_->Write(kOut, 50, Text(50, 50));
  RunUntil([&] { return ReadAll(logs_, kOut).size() == 100; });
  Restart();
  EXPECT_EQ(store_->end(kOut), 50);
  EXPECT_EQ(ReadAll(logs_, kOut), Text(0, 50));
  store_->Write(kOut, 50, Text(50, 70));
  Flush();
  EXPECT_EQ(ReadAll(logs_, kOut), Text(0, 120));
}

TEST_F(LogStoreTest, ManyRanksMakeSegmentsSmall) {
  Begin(dir_);
  store_.reset();
  const uint64_t limit = 1 << 20;
  store_ = std::make_unique<LogStore>(loop_, *journal_, LogPlace{logs_, {}, limit},
                                      LogStore::Callbacks{});
  ASSERT_TRUE(store_->Open().ok());
  store_->SetWorldSize(16);  // of 8 KiB
  for (uint64_t at = 0; at < 2 * limit; at += 1000) store_->Write(kOut, at, Text(at, 1000));
  Flush();
  const auto streams = ListSegments(logs_);
  ASSERT_TRUE(streams.ok());
  uint64_t bytes = 0;
  for (const LogSegment& segment : streams->at(kOut)) {
    EXPECT_LE(segment.size, 8u << 10);
    bytes += segment.size;
  }
  EXPECT_LE(bytes, limit);
  EXPECT_GE(bytes, limit - (16 << 10));
}

TEST_F(LogStoreTest, EmptyFlushIsDoneAtOnce) {
  Begin(dir_);
  Flush();
  Flush();
}

// H5
TEST_F(LogStoreTest, AFullDiskLosesNothing) {
  const std::string place = SmallDisk(256 << 10);
  if (place.empty()) GTEST_SKIP() << "needs root, to mount a small file system";
  Begin(place);
  store_->Write(kOut, 0, Text(0, 1000));
  Flush();
  Fill(place);
  store_->Write(kOut, 1000, Text(1000, 50000));
  store_->Write(kErr, 0, Text(0, 50000));
  RunUntil([&] { return !log_troubles_.empty(); });
  EXPECT_THAT(std::string(log_troubles_[0].message()), HasSubstr("No space left on device"));
  store_->Write(kErr, 50000, Text(50000, 10));
  EXPECT_EQ(store_->queued_bytes(), 100010);
  loop_.context().run_for(kJournalRetry + std::chrono::milliseconds(100));
  EXPECT_EQ(told_[kOut], 1000);
  MakeRoom(place);
  Flush();
  EXPECT_EQ(ReadAll(logs_, kOut), Text(0, 51000));
  EXPECT_EQ(ReadAll(logs_, kErr), Text(0, 50010));
  ASSERT_EQ(log_troubles_.size(), 2);
  EXPECT_TRUE(log_troubles_[1].ok());
  store_.reset();
  journal_.reset();
}

// J8
TEST_F(LogStoreTest, AFileThatSomebodyRemovedIsAGap) {
  Begin(dir_);
  store_->Write(kOut, 0, Text(0, 100));
  Flush();
  fs::remove(logs_ + "/" + SegmentName(kOut, 0));
  store_->Write(kOut, 100, Text(100, 50));
  Flush();
  EXPECT_EQ(ReadAll(logs_, kOut), "[dtrain: 100 bytes are no longer available]\n" + Text(100, 50));
  ASSERT_EQ(log_troubles_.size(), 2);
  EXPECT_THAT(std::string(log_troubles_[0].message()), HasSubstr("was removed"));
  // And one that is cut.
  fs::resize_file(logs_ + "/" + SegmentName(kOut, 100), 10);
  Restart();
  store_->Write(kOut, 150, Text(150, 5));
  Flush();
  EXPECT_EQ(ReadAll(logs_, kOut, 100),
            Text(100, 10) + "[dtrain: 40 bytes are no longer available]\n" + Text(150, 5));
}

}  // namespace
}  // namespace dtrain::detached
