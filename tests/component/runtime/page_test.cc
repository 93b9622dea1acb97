// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/page/worker_page.h"
#include "dtrain/dtrain.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/nccl_judge.h"
#include "tests/component/runtime/ranks.h"

namespace dtrain::runtime {
namespace {

using testing::HasSubstr;
using testing::Not;

// A shepherd's side of one page; ranks inherit the descriptor.
class Page {
 public:
  explicit Page(uint32_t capacity) {
    bytes_ = (WorkerPageBytes(capacity) + 4095) / 4096 * 4096;
    fd_ = memfd_create("test-page", MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes_)), 0);
    EXPECT_EQ(fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    page_ =
        static_cast<WorkerPage*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    page_->magic = kWorkerPageMagic;
    page_->version = kWorkerPageVersion;
    page_->size = bytes_;
    page_->capacity = capacity;
  }
  ~Page() {
    munmap(page_, bytes_);
    close(fd_);
  }
  WorkerPage* operator->() { return page_; }
  int fd() const { return fd_; }
  // For the environment of the rank that is about to join.
  void Give() const { setenv("DTRAIN_PAGE_FD", std::to_string(fd_).c_str(), 1); }

  std::vector<TimelineRecord> Take() {
    std::vector<TimelineRecord> records;
    const uint64_t written = page_->written.load();
    for (uint64_t i = page_->taken.load(); i < written; ++i) {
      records.push_back(TimelineRing(page_)[i % page_->capacity]);
    }
    page_->taken.store(written);
    return records;
  }

 private:
  size_t bytes_ = 0;
  int fd_ = -1;
  WorkerPage* page_ = nullptr;
};

bool IsStopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  return name_end != stat.npos && stat.compare(name_end, 3, ") T") == 0;
}

// `pids` tells which process stops. Lets it go on when it has looked.
void LookWhileOneIsStopped(Page* pages, int pids) {
  pid_t stopped = 0;
  ASSERT_EQ(read(pids, &stopped, sizeof(stopped)), static_cast<ssize_t>(sizeof(stopped)));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const auto inside = [&] {
    return IsStopped(stopped) && pages[0]->begin_ns.load() != 0 && pages[0]->number.load() == 3 &&
           pages[0]->change.load() % 2 == 0;
  };
  while (!inside() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(inside());
  EXPECT_EQ(pages[0]->kind.load(), static_cast<uint32_t>(TimelineKind::kAllreduce));
  EXPECT_EQ(pages[0]->bytes.load(), 7u * 8);
  EXPECT_EQ(pages[0]->group.load(), 0u);
  EXPECT_EQ(pages[1]->number.load(), 2u) << "the last one that the stopped rank was in";
  EXPECT_EQ(pages[1]->begin_ns.load(), 0);
  EXPECT_EQ(pages[1]->joined.load(), 1u);
  EXPECT_EQ(kill(stopped, SIGCONT), 0);
}

TEST(PageTest, CountsWhatWasDone) {
  Page pages[2] = {Page(0), Page(0)};
  const auto ends = Ranks::Run(2, [&](int rank) {
    Page& page = pages[rank];
    page.Give();
    EXPECT_EQ(page->joined.load(), 0u);
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    char target[64] = "";
    (void)!readlink(("/proc/self/fd/" + std::to_string(page.fd())).c_str(), target, 63);
    EXPECT_THAT(target, Not(HasSubstr("test-page"))) << "the library keeps the mapping only";
    EXPECT_EQ(page->joined.load(), 1u);
    EXPECT_EQ(page->operations.load(), 0u);
    float data[10] = {};
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(dtrain_allreduce(data, data, 10, DTRAIN_FLOAT32, DTRAIN_SUM), DTRAIN_OK);
    }
    ASSERT_EQ(dtrain_barrier(), DTRAIN_OK);
    EXPECT_EQ(page->operations.load(), 6u);
    EXPECT_EQ(page->total_bytes.load(), 5u * 40);
    EXPECT_EQ(page->number.load(), 5u);
    EXPECT_EQ(page->begin_ns.load(), 0) << "not inside one";
    EXPECT_EQ(page->change.load() % 2, 0u);
    EXPECT_GT(page->busy_ns.load(), 0u);
    EXPECT_LE(page->wait_ns.load(), page->busy_ns.load());
    dtrain_handle handles[20];
    for (dtrain_handle& handle : handles) {
      ASSERT_EQ(dtrain_allreduce_async(data, data, 1, DTRAIN_FLOAT32, DTRAIN_SUM, nullptr, &handle),
                DTRAIN_OK);
    }
    for (const dtrain_handle handle : handles) ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK);
    EXPECT_EQ(page->operations.load(), 26u) << "agreements are none of the program's";
    EXPECT_EQ(page->total_bytes.load(), 5u * 40 + 20 * 4);
    EXPECT_EQ(page->number.load(), 25u);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
    EXPECT_EQ(page->joined.load(), 0u);
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

// A reader sees which collective the others wait in while one rank is stopped. It is a process: a
// thread beside the fork of a rank may hold locks of AddressSanitizer's allocator.
TEST(PageTest, ShowsTheCollectiveThatAStoppedRankKeepsOpen) {
  Page pages[2] = {Page(0), Page(0)};
  RanksOptions options;
  options.environment["DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"] = "40";
  int pids[2];
  ASSERT_EQ(pipe2(pids, O_CLOEXEC), 0);
  const pid_t reader = fork();
  ASSERT_GE(reader, 0);
  if (reader == 0) {
    close(pids[1]);
    LookWhileOneIsStopped(pages, pids[0]);
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  close(pids[0]);
  const auto ends = Ranks::Run(
      2,
      [&](int rank) {
        pages[rank].Give();
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
        for (int i = 0; i < 3; ++i) ASSERT_EQ(dtrain_barrier(), DTRAIN_OK);
        if (rank == 1) {
          const pid_t me = getpid();
          EXPECT_EQ(write(pids[1], &me, sizeof(me)), static_cast<ssize_t>(sizeof(me)));
          raise(SIGSTOP);
        }
        int64_t data[7] = {};
        ASSERT_EQ(dtrain_allreduce(data, data, 7, DTRAIN_INT64, DTRAIN_SUM), DTRAIN_OK)
            << dtrain_last_error();
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      options);
  close(pids[1]);
  int status = -1;
  EXPECT_EQ(waitpid(reader, &status, 0), reader);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

TEST(PageTest, TimelineHasEveryCollectiveAndMark) {
  Page pages[2] = {Page(256), Page(256)};
  const auto ends = Ranks::Run(2, [&](int rank) {
    pages[rank].Give();
    dtrain_mark_begin("too early");
    dtrain_mark_end();
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    dtrain_mark_end();  // without a begin
    dtrain_mark_begin("step");
    dtrain_mark_begin("a name that is longer than thirty-nine bytes");
    ASSERT_EQ(dtrain_barrier(), DTRAIN_OK);
    dtrain_mark_end();
    std::thread([] {
      dtrain_mark_begin(nullptr);
      dtrain_mark_end();
    }).join();
    float data[30] = {};
    dtrain_handle handles[3];
    for (int i = 0; i < 3; ++i) {
      dtrain_options options = DTRAIN_OPTIONS_INIT;
      const std::string name = "layer" + std::to_string(i);
      options.name = name.c_str();
      ASSERT_EQ(dtrain_allreduce_async(data + 10 * i, data + 10 * i, 10, DTRAIN_FLOAT32, DTRAIN_SUM,
                                       &options, &handles[i]),
                DTRAIN_OK);
    }
    for (const dtrain_handle handle : handles) ASSERT_EQ(dtrain_wait(handle), DTRAIN_OK);
    dtrain_mark_end();
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
  for (Page& page : pages) {
    std::map<std::string, TimelineRecord> by_name;
    size_t barriers = 0;
    for (const TimelineRecord& record : page.Take()) {
      EXPECT_LE(record.begin_ns, record.end_ns) << record.name;
      EXPECT_LE(record.negotiate_ns + record.wait_ns + record.transfer_ns + record.reduce_ns,
                record.end_ns - record.begin_ns + 1'000'000)
          << record.name;
      const auto kind = static_cast<TimelineKind>(record.kind);
      if (kind == TimelineKind::kBarrier) ++barriers;
      if (kind != TimelineKind::kFusion) by_name[record.name] = record;
    }
    EXPECT_EQ(barriers, 1u);
    EXPECT_EQ(by_name.count("too early"), 0u);
    ASSERT_EQ(by_name.count("step"), 1u);
    const std::string cut = "a name that is longer than thirty-nine bytes";
    ASSERT_EQ(by_name.count(cut.substr(0, 39)), 1u);
    EXPECT_LE(by_name["step"].begin_ns, by_name[cut.substr(0, 39)].begin_ns);
    EXPECT_GE(by_name["step"].end_ns, by_name[cut.substr(0, 39)].end_ns);
    EXPECT_EQ(by_name["step"].lane, 0u);
    EXPECT_EQ(by_name["step"].kind, static_cast<uint32_t>(TimelineKind::kMark));
    for (int i = 0; i < 3; ++i) {
      const std::string name = "layer" + std::to_string(i);
      ASSERT_EQ(by_name.count(name), 1u);
      EXPECT_EQ(by_name[name].number, static_cast<uint64_t>(1 + i));
      EXPECT_EQ(by_name[name].bytes, 40u);
      EXPECT_LE(by_name[name].lane, 1u) << "the engine's, or that of who waited";
    }
    EXPECT_EQ(by_name[""].kind, static_cast<uint32_t>(TimelineKind::kMark));
    EXPECT_GE(by_name[""].lane, 2u) << "another thread's";
    EXPECT_EQ(page->dropped.load(), 0u);
  }
}

// N8: from when it was called until the GPU has done it, with what the program did meanwhile
// inside.
TEST(PageTest, ShowsACollectiveOfTheGpuUntilTheGpuHasDoneIt) {
  Page pages[2] = {Page(256), Page(256)};
  RunJobOf(2, OnNcclOf("fake_nccl"), [&](int rank) {
    Page& page = pages[rank];
    page.Give();
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    EXPECT_EQ(SumOfOne(1), 2);
    const abi::CuStream stream = driver.NewStream();
    void* const memory = driver.Allocate(400);
    Gate gate(stream, driver.device());
    if (rank == 0) gate.Open();
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.stream = stream;
    options.name = "gradient";
    dtrain_handle handle = 0;
    ASSERT_OK(
        dtrain_allreduce_async(memory, memory, 100, DTRAIN_INT32, DTRAIN_SUM, &options, &handle));
    ASSERT_OK(dtrain_barrier());
    dtrain_mark_begin("backward");
    // The barrier behind it is over, and this is not.
    EXPECT_GT(page->begin_ns.load(), 0);
    EXPECT_EQ(page->number.load(), 1u);
    EXPECT_EQ(page->kind.load(), static_cast<uint32_t>(TimelineKind::kAllreduce));
    EXPECT_EQ(page->bytes.load(), 400u);
    dtrain_mark_end();
    ASSERT_OK(dtrain_barrier());
    gate.Open();
    ASSERT_OK(dtrain_wait(handle));
    ASSERT_OK(dtrain_finalize());
    EXPECT_EQ(page->begin_ns.load(), 0);
  });
  for (Page& page : pages) {
    std::map<std::string, TimelineRecord> by_name;
    for (const TimelineRecord& record : page.Take()) by_name[record.name] = record;
    ASSERT_EQ(by_name.count("gradient"), 1u);
    EXPECT_LE(by_name["gradient"].begin_ns, by_name["backward"].begin_ns);
    EXPECT_GE(by_name["gradient"].end_ns, by_name["backward"].end_ns);
  }
}

// A rank may compute for hours behind it: what the page still shows then is taken for a stall.
TEST(PageTest, ShowsNothingOnceTheGpuHasDoneAll) {
  Page pages[2] = {Page(256), Page(256)};
  RunJobOf(2, OnNcclOf("fake_nccl"), [&](int rank) {
    Page& page = pages[rank];
    page.Give();
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    std::vector<int32_t> host(100, 1);
    void* const memory = driver.Allocate(400);
    driver.Put(memory, host.data(), 400);
    uint64_t spans = 0;
    for (void* const buffer : {memory, static_cast<void*>(host.data())}) {
      dtrain_handle handle = 0;
      ASSERT_OK(
          dtrain_allreduce_async(buffer, buffer, 100, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle));
      for (int done = 0; done == 0;) ASSERT_OK(dtrain_test(handle, &done));
      // Another thread may be about to write what this one has seen. The span comes last.
      ++spans;
      const auto end = NcclRank::In(20);
      while (page->written.load() < spans && std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
      EXPECT_EQ(page->written.load(), spans);
      EXPECT_EQ(page->begin_ns.load(), 0) << (buffer == memory ? "of the GPU" : "of the host");
      EXPECT_EQ(page->operations.load(), spans);
    }
    ASSERT_OK(dtrain_finalize());
  });
}

TEST(PageTest, FullRingDropsAndCountsAndGoesOnWhenThereIsRoom) {
  Page page(8);
  const auto ends = Ranks::Run(1, [&](int) {
    page.Give();
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    for (int i = 0; i < 20; ++i) {
      dtrain_mark_begin(std::to_string(i).c_str());
      dtrain_mark_end();
    }
    EXPECT_EQ(page->written.load(), 8u);
    EXPECT_EQ(page->dropped.load(), 12u);
    const auto first = page.Take();
    ASSERT_EQ(first.size(), 8u);
    EXPECT_STREQ(first[7].name, "7");
    for (int i = 20; i < 23; ++i) {
      dtrain_mark_begin(std::to_string(i).c_str());
      dtrain_mark_end();
    }
    const auto second = page.Take();
    ASSERT_EQ(second.size(), 3u);
    EXPECT_STREQ(second[2].name, "22");
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, std::vector<int>{0});
}

TEST(PageTest, MarksOfManyThreadsDoNotDisturbEachOther) {
  constexpr int kThreads = 4;
  constexpr int kMarks = 500;
  Page page(kThreads * kMarks);
  const auto ends = Ranks::Run(1, [&](int) {
    page.Give();
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < kMarks; ++i) {
          dtrain_mark_begin((std::to_string(t) + "." + std::to_string(i)).c_str());
          dtrain_mark_end();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, std::vector<int>{0});
  std::map<std::string, std::set<uint32_t>> lanes;
  std::set<std::string> names;
  for (const TimelineRecord& record : page.Take()) {
    names.insert(record.name);
    lanes[std::string(record.name).substr(0, 1)].insert(record.lane);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kThreads * kMarks));
  for (const auto& [thread, seen] : lanes) EXPECT_EQ(seen.size(), 1u) << thread;
}

TEST(PageTest, WhatIsNoPageIsIgnored) {
  const auto works = [](const std::function<int()>& make_fd) {
    EXPECT_EQ(Ranks::Run(1,
                         [&](int) {
                           const int fd = make_fd();
                           setenv("DTRAIN_PAGE_FD", std::to_string(fd).c_str(), 1);
                           ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
                           dtrain_mark_begin("x");
                           dtrain_mark_end();
                           EXPECT_EQ(dtrain_barrier(), DTRAIN_OK);
                           EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
                           if (fd >= 0) {
                             EXPECT_NE(fcntl(fd, F_GETFD), -1) << "not ours, so not closed";
                           }
                         }),
              std::vector<int>{0});
  };
  works([] { return -1; });
  works([] { return open("/dev/null", O_RDWR); });
  works([] { return memfd_create("empty", MFD_ALLOW_SEALING); });
  const auto changed = [](void (*change)(WorkerPage*)) {
    return [change] {
      auto* page = new Page(4);
      change(page->operator->());
      return page->fd();
    };
  };
  works(changed([](WorkerPage* page) { page->magic = 1; }));
  works(changed([](WorkerPage* page) { page->version = 99; }));
  works(changed([](WorkerPage* page) { page->size += 4096; }));
  works(changed([](WorkerPage* page) { page->capacity = 1'000'000; }));
  works([] {  // not sealed: it could be cut under the worker's feet
    const int fd = memfd_create("unsealed", 0);
    Page good(4);
    EXPECT_EQ(write(fd, good.operator->(), sizeof(WorkerPage)),
              static_cast<ssize_t>(sizeof(WorkerPage)));
    EXPECT_EQ(ftruncate(fd, 4096), 0);
    return fd;
  });
}

TEST(PageTest, ForkedChildWritesNothing) {
  Page page(16);
  const auto ends = Ranks::Run(1, [&](int) {
    page.Give();
    ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK);
    const pid_t child = fork();
    if (child == 0) {
      dtrain_mark_begin("child");
      dtrain_mark_end();
      _exit(dtrain_barrier() == DTRAIN_ERROR_STATE ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(page->written.load(), 0u);
    EXPECT_EQ(page->operations.load(), 0u);
    EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
  });
  EXPECT_EQ(ends, std::vector<int>{0});
}

}  // namespace
}  // namespace dtrain::runtime
