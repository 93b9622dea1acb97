// SPDX-License-Identifier: Apache-2.0
// Registered memory: in place when all ranks use it alike, and never otherwise (N16).
#include "tests/component/runtime/nccl_registered.h"

namespace dtrain::runtime::registered {
namespace {

class NcclRegistered : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Versions, NcclRegistered, testing::ValuesIn(NcclVersions()),
                         [](const auto& version) {
                           std::string name = version.param == "fake_nccl" ? "fake_nccl_2.28.9"
                                              : version.param == "fake_nccl_old"
                                                  ? "fake_nccl_2.14.3"
                                                  : version.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name.substr(10);
                         });

// Before 2.19 NCCL has no registration, and the same program runs without.
TEST_P(NcclRegistered, MemoryIsUsedInPlaceByAllKindsWhereNcclCan) {
  RunJobOf(3, OnNcclOf(GetParam()), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    const bool old = GetParam() == "fake_nccl_old" || GetParam() == "fake_nccl_2.18.6";
    char* const one = MakeRegistered(3 * kBytes, nullptr, old ? 0 : 1);
    char* const two = MakeRegistered(3 * kBytes, nullptr, old ? 0 : 1);
    int before = Seen("registered");
    const auto expect_in_place = [&](const char* what) {
      EXPECT_EQ(Seen("registered") > before, !old) << what;
      before = Seen("registered");
    };
    for (int step = 0; step < 3; ++step) {
      ExpectSum(driver, one, two, rank, step, true);
      expect_in_place("blocking");
      ExpectSum(driver, one, one, rank, step, false);
      expect_in_place("in place");
    }
    Ints values(3 * kCount, rank + 1);
    driver.Put(one, values.data(), 3 * kBytes);
    ASSERT_OK(dtrain_reduce_scatter(one, two, kCount, DTRAIN_INT32, DTRAIN_SUM));
    expect_in_place("reduce-scatter");
    driver.Get(values.data(), two, kBytes);
    EXPECT_EQ(values[kCount - 1], 6);
    ASSERT_OK(dtrain_allgather(one + rank * kBytes, one, kCount, DTRAIN_INT32));
    expect_in_place("allgather");
    driver.Get(values.data(), one, 3 * kBytes);
    EXPECT_EQ(values[2 * kCount], 3);
    ASSERT_OK(dtrain_broadcast(two, kCount, DTRAIN_INT32, 1));
    expect_in_place("broadcast");
    ASSERT_OK(dtrain_alltoall(one, two, kCount, DTRAIN_INT32));
    expect_in_place("all-to-all");
    driver.Get(values.data(), two, 3 * kBytes);
    EXPECT_EQ(values[2 * kCount], rank + 1);
    ASSERT_OK(dtrain_free(one));
    // The other one is left to the end.
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// None of it comes to NCCL registered, which would hang.
TEST_P(NcclRegistered, MemoryOfSomeRanksOnlyGivesTheSameResults) {
  RunJobOf(3, OnNcclOf(GetParam()), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    const bool old = GetParam() == "fake_nccl_old" || GetParam() == "fake_nccl_2.18.6";
    char* const own = MakeRegistered(2 * kBytes, nullptr, old ? 0 : 1);
    void* const plain = driver.Allocate(2 * kBytes);
    Ints host(2 * kCount);
    for (const bool blocks : {true, false}) {
      // Registered here, plain there.
      void* const mine = rank == 1 ? plain : own;
      ExpectSum(driver, mine, mine, rank, 1, blocks);
      // Registered on all, but in place on one only.
      ExpectSum(driver, own, rank == 2 ? own : own + kBytes, rank, 2, blocks);
      // At another offset.
      char* const shifted = own + (rank == 0 ? 256 : 0);
      ExpectSum(driver, shifted, shifted, rank, 3, blocks);
      // The output only.
      ExpectSum(driver, plain, rank == 0 ? own : plain, rank, 4, blocks);
    }
    // The host's on one.
    Ints mine(kCount, rank);
    driver.Put(own, mine.data(), kBytes);
    void* const anywhere = rank == 0 ? static_cast<void*>(mine.data()) : own;
    ASSERT_OK(dtrain_allreduce(anywhere, anywhere, kCount, DTRAIN_INT32, DTRAIN_SUM));
    if (rank != 0) driver.Get(mine.data(), own, kBytes);
    EXPECT_EQ(mine, Ints(kCount, 3));
    // Only the root has an output that counts.
    ASSERT_OK(dtrain_reduce(own, rank == 1 ? own + kBytes : nullptr, kCount, DTRAIN_INT32,
                            DTRAIN_MAX, 1));
    // Rows, of which it shows when they are measured.
    dtrain_handle handle = 0;
    const auto give = [](void* memory, const uint64_t*) { return memory; };
    char* const rows = rank == 1 ? static_cast<char*>(plain) + kBytes : own;
    ASSERT_OK(dtrain_allgatherv_async(plain, 100, 1, DTRAIN_INT32, give, rows, nullptr, &handle));
    ASSERT_OK(dtrain_wait(handle));
    EXPECT_EQ(Seen("registered"), 0);
    // Once more alike: it still works in place.
    ExpectSum(driver, own, own, rank, 5, true);
    EXPECT_EQ(Seen("registered"), old ? 0 : 1);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

// Several in flight, in another order on every rank, some of them registered on some ranks only.
TEST(NcclRegisteredOf, NamedCollectivesMeetWhateverIsRegistered) {
  for (const std::string& version : Registering()) {
    RunJobOf(3, OnNcclOf(version), [](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      const Driver driver(rank);
      constexpr int kMany = 6;
      char* registered[kMany];
      char* plain[kMany];
      for (int i = 0; i < kMany; ++i) {
        registered[i] = MakeRegistered(kBytes);
        plain[i] = static_cast<char*>(driver.Allocate(kBytes));
      }
      for (int step = 0; step < 4; ++step) {
        dtrain_handle handles[kMany];
        const auto memory = [&](int i) {
          return i % 2 == 0 || (rank + step) % 3 == 0 ? registered[i] : plain[i];
        };
        for (int j = 0; j < kMany; ++j) {
          const int i = (j + rank * step) % kMany;
          const Ints mine(kCount, rank + i);
          driver.Put(memory(i), mine.data(), kBytes);
          const std::string name = "number " + std::to_string(i);
          dtrain_options options = DTRAIN_OPTIONS_INIT;
          options.name = name.c_str();
          ASSERT_OK(dtrain_allreduce_async(memory(i), memory(i), kCount, DTRAIN_INT32, DTRAIN_SUM,
                                           &options, &handles[i]));
        }
        for (int i = 0; i < kMany; ++i) {
          ASSERT_OK(dtrain_wait(handles[i]));
          Ints all(kCount);
          driver.Get(all.data(), memory(i), kBytes);
          ASSERT_EQ(all, Ints(kCount, 3 + 3 * i)) << step << " " << i;
        }
      }
      ASSERT_OK(dtrain_finalize());
      ExpectNoOffence();
    });
  }
}

TEST(NcclRegisteredOf, ZerosOfARankThatHasJoinedAreNobodysRegisteredMemory) {
  RunJobOf(3, OnNcclOf("fake_nccl"), [](int rank) {
    ASSERT_OK(dtrain_init(nullptr));
    const Driver driver(rank);
    char* const own = MakeRegistered(kBytes);
    for (int step = 0; step < rank; ++step) {
      const Ints ones(kCount, 1);
      driver.Put(own, ones.data(), kBytes);
      dtrain_handle handle = 0;
      ASSERT_OK(
          dtrain_allreduce_async(own, own, kCount, DTRAIN_INT32, DTRAIN_SUM, nullptr, &handle));
      ASSERT_OK(dtrain_wait(handle));
      Ints all(kCount);
      driver.Get(all.data(), own, kBytes);
      EXPECT_EQ(all, Ints(kCount, step == 0 ? 2 : 1));
    }
    ASSERT_OK(dtrain_join(nullptr));
    EXPECT_EQ(Seen("registered"), 0);
    ASSERT_OK(dtrain_finalize());
    ExpectNoOffence();
  });
}

TEST(NcclRegisteredOf, GroupsHaveRegistrationsOfTheirOwn) {
  for (const std::string& version : Registering()) {
    RunJobOf(4, OnNcclOf(version), [](int rank) {
      ASSERT_OK(dtrain_init(nullptr));
      const Driver driver(rank);
      dtrain_group group = nullptr;
      ASSERT_OK(dtrain_group_create(rank % 2, 0, &group));
      char* const both = MakeRegistered(kBytes);
      int registered = 0;
      ASSERT_OK(dtrain_register(both, group, &registered));
      EXPECT_EQ(registered, 1);
      dtrain_options options = DTRAIN_OPTIONS_INIT;
      options.group = group;
      for (int step = 0; step < 4; ++step) {
        const Ints mine(kCount, rank);
        driver.Put(both, mine.data(), kBytes);
        dtrain_handle handle = 0;
        ASSERT_OK(dtrain_allreduce_async(both, both, kCount, DTRAIN_INT32, DTRAIN_SUM, &options,
                                         &handle));
        ASSERT_OK(dtrain_wait(handle));
        Ints all(kCount);
        driver.Get(all.data(), both, kBytes);
        EXPECT_EQ(all, Ints(kCount, rank % 2 == 0 ? 2 : 4));
        if (step != 2) continue;
        EXPECT_EQ(Seen("registered"), 3);
        // One rank alone: from here on nobody's is used.
        if (rank < 2) {
          ASSERT_OK(dtrain_deregister(both, group));
        }
      }
      EXPECT_EQ(Seen("registered"), 3);
      ExpectSum(driver, both, both, rank, 1, true);
      EXPECT_EQ(Seen("registered"), 4);
      // Again with all.
      ASSERT_OK(dtrain_register(both, group, &registered));
      EXPECT_EQ(registered, 1);
      ASSERT_OK(dtrain_group_free(group));
      ExpectSum(driver, both, both, rank, 2, true);
      ASSERT_OK(dtrain_free(both));
      ASSERT_OK(dtrain_finalize());
      ExpectNoOffence();
    });
  }
}

}  // namespace
}  // namespace dtrain::runtime::registered
