// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/mpi_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::shepherd {
namespace {

using ::testing::HasSubstr;

// As the kernel writes it.
std::string Maps(std::initializer_list<const char*> files) {
  std::string text =
      "55d0c0a00000-55d0c0a01000 r--p 00000000 fe:00 1 /home/me/program\n"
      "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
      "7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0    [stack]\n";
  for (const char* file : files) {
    absl::StrAppend(&text, "7f49bcf1a000-7f49bcf1b000 r--p 00000000 fe:00 14885390     ", file,
                    "\n");
  }
  return text;
}

const std::string kGiven("PATH=/bin\0PMI_FD=3\0PMIX_NAMESPACE=j-0\0", 38);
const std::string kEmptied("PATH=/bin\0", 10);
constexpr char kOpen[] = "/usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4";
constexpr char kMpich[] = "/usr/lib/x86_64-linux-gnu/libmpich.so.12.2.2";
constexpr char kSingleton[] = "/usr/lib/openmpi3/mca_ess_singleton.so";

TEST(MpiSignsTest, NamesTheLibrary) {
  EXPECT_EQ(ReadMpiSigns(Maps({kOpen}), kGiven).library, "libmpi.so.40");
  EXPECT_EQ(ReadMpiSigns(Maps({"/opt/libmpi.so.40"}), kGiven).library, "libmpi.so.40");
  EXPECT_EQ(ReadMpiSigns(Maps({kMpich}), kGiven).library, "libmpich.so.12");
  EXPECT_EQ(ReadMpiSigns(Maps({"/opt/intel/libmpi.so.12.0.0"}), kGiven).library, "libmpi.so.12");
  for (const char* other : {"/lib/libmpi.so.401", "/lib/libmpi.so", "/libmpi.so.40/x.so",
                            "/lib/libopen-rte.so.40.30.2", "/lib/libmpi_cxx.so.40"}) {
    EXPECT_EQ(ReadMpiSigns(Maps({other, kSingleton}), kEmptied).library, "") << other;
    EXPECT_FALSE(ReadMpiSigns(Maps({other, kSingleton}), kEmptied).alone) << other;
  }
}

TEST(MpiSignsTest, WhoHasNoVariablesIsCutOff) {
  EXPECT_FALSE(ReadMpiSigns(Maps({kOpen}), kGiven).cut_off);
  EXPECT_TRUE(ReadMpiSigns(Maps({kOpen}), kEmptied).cut_off);
  EXPECT_TRUE(ReadMpiSigns(Maps({kOpen}), "").cut_off);
  EXPECT_TRUE(ReadMpiSigns(Maps({kOpen}), "X=PMI_FD=3").cut_off);
}

TEST(MpiSignsTest, OpenMpiIsAloneWithItsModuleForThat) {
  EXPECT_FALSE(ReadMpiSigns(Maps({kOpen}), kEmptied).alone);
  EXPECT_FALSE(ReadMpiSigns(Maps({kOpen, "/lib/mca_ess_pmi.so"}), kEmptied).alone);
  EXPECT_TRUE(ReadMpiSigns(Maps({kOpen, kSingleton}), kEmptied).alone);
  // In the middle of MPI_Init, or of a program that unsets the variables itself.
  const MpiSigns either = ReadMpiSigns(Maps({kSingleton, kOpen}), kGiven);
  EXPECT_FALSE(either.alone);
  EXPECT_TRUE(either.perhaps_alone);
}

TEST(MpiSignsTest, OpenMpi5IsAloneWhenItsSharedMemoryIsOpenAndNobodyCanBeReached) {
  constexpr char kSegment[] = "/dev/shm/sm_segment.node0.0.bc8a0000.0";
  EXPECT_FALSE(ReadMpiSigns(Maps({kOpen}), kEmptied).alone);
  EXPECT_FALSE(ReadMpiSigns(Maps({kSegment}), kEmptied).alone);
  EXPECT_FALSE(ReadMpiSigns(Maps({kMpich, kSegment}), kEmptied).alone);
  EXPECT_FALSE(ReadMpiSigns(Maps({kOpen, kSegment}), kGiven).alone);
  EXPECT_TRUE(ReadMpiSigns(Maps({kOpen, kSegment}), kEmptied).alone);
}

// UCX may be somebody else's; with the variables, MPI_Init would have joined.
TEST(MpiSignsTest, MpichIsAloneWhenItsTransportIsOpenAndNobodyCanBeReached) {
  constexpr char kUcx[] = "/dev/shm/ucx_shm_posix_52849cab (deleted)";
  EXPECT_FALSE(ReadMpiSigns(Maps({kMpich}), kEmptied).alone);
  EXPECT_FALSE(ReadMpiSigns(Maps({kUcx}), kEmptied).alone);
  EXPECT_FALSE(ReadMpiSigns(Maps({kMpich, kUcx}), kGiven).alone);
  EXPECT_TRUE(ReadMpiSigns(Maps({kMpich, kUcx}), kEmptied).alone);
}

TEST(MpiSignsTest, JunkIsNoSign) {
  for (const std::string& junk : {std::string(), std::string(1 << 16, '/'),
                                  std::string("\0\n/\n", 4), std::string(1 << 16, '\n')}) {
    EXPECT_EQ(ReadMpiSigns(junk, junk).library, "");
    EXPECT_FALSE(ReadMpiSigns(junk, junk).alone);
    EXPECT_FALSE(IsSingletonDaemon(junk));
  }
}

TEST(MpiSignsTest, KnowsTheDaemonOfASingleton) {
  const std::string arguments("\0--hnp\0--singleton-died-pipe\0009\0", 31);
  EXPECT_TRUE(IsSingletonDaemon(absl::StrCat("/usr/bin/orted", arguments)));
  EXPECT_FALSE(IsSingletonDaemon(absl::StrCat("/usr/bin/other", arguments)));
  EXPECT_FALSE(IsSingletonDaemon(std::string("orted\0--hnp\0", 12)));
  EXPECT_TRUE(IsMpiLauncher("mpirun\n"));
  EXPECT_TRUE(IsMpiLauncher("hydra_pmi_proxy\n"));
  EXPECT_FALSE(IsMpiLauncher("python3\n"));
}

constexpr char kLibrary[] = "libmpi.so.40";

TEST(MpiWatchTest, ARankThatIsAloneIsToldOnceAndFailsWhenItSucceeds) {
  MpiWatch watch(4);
  EXPECT_TRUE(watch.WantsLook(1));
  watch.OnLook(1, {.library = kLibrary, .cut_off = true, .alone = true});
  EXPECT_FALSE(watch.WantsLook(1));
  EXPECT_THAT(watch.TellAlone(), HasSubstr("rank 1 is alone in an MPI world of its own "
                                           "(libmpi.so.40) and not with the job's 4 ranks"));
  EXPECT_EQ(watch.TellAlone(), "");
  EXPECT_THAT(watch.OnSuccess(1),
              HasSubstr("rank 1 ended with 0, but in an MPI world of its own (libmpi.so.40)"));
  EXPECT_EQ(watch.OnSuccess(0), "");
  EXPECT_EQ(watch.TellSuspects(), "");
}

TEST(MpiWatchTest, WhoseModuleForThatStaysIsAlone) {
  MpiWatch watch(4);
  const MpiSigns perhaps = {.library = kLibrary, .perhaps_alone = true};
  for (const uint32_t rank : {0, 1}) watch.OnLook(rank, perhaps);
  EXPECT_EQ(watch.TellAlone(), "");
  EXPECT_EQ(watch.OnSuccess(3), "");
  watch.OnLook(0, {.library = kLibrary});
  watch.OnLook(0, perhaps);
  watch.OnLook(1, perhaps);
  EXPECT_THAT(watch.TellAlone(), HasSubstr("rank 1 is alone"));
  EXPECT_EQ(watch.OnSuccess(0), "");
  EXPECT_NE(watch.OnSuccess(1), "");
}

TEST(MpiWatchTest, WhoJoinsIsInTheWorldWhateverWasSeen) {
  MpiWatch watch(4);
  watch.OnLook(1, {.library = kLibrary, .cut_off = true, .alone = true});
  watch.OnJoined(1);
  EXPECT_FALSE(watch.WantsLook(1));
  watch.OnLook(1, {.library = kLibrary, .cut_off = true, .alone = true});
  EXPECT_EQ(watch.TellAlone(), "");
  EXPECT_EQ(watch.OnSuccess(1), "");
  EXPECT_EQ(watch.TellSuspects(), "");
}

// As programs do that are linked with MPI and have no use for it in this run.
TEST(MpiWatchTest, WhoCouldJoinAndDoesNotIsNotSpokenOf) {
  MpiWatch watch(4);
  watch.OnLook(0, {.library = kLibrary});
  EXPECT_TRUE(watch.WantsLook(0));
  EXPECT_EQ(watch.OnSuccess(0), "");
  EXPECT_EQ(watch.TellSuspects(), "");
}

TEST(MpiWatchTest, SuspectsAreNamedAtTheEndIfTheySucceed) {
  MpiWatch watch(40);
  for (uint32_t rank = 0; rank < 20; ++rank) {
    watch.OnLook(rank, {.library = kLibrary, .cut_off = true});
    watch.OnLook(rank, {});  // another process of it
  }
  EXPECT_EQ(watch.TellSuspects(), "");
  for (uint32_t rank = 0; rank < 10; ++rank) EXPECT_EQ(watch.OnSuccess(rank), "");
  EXPECT_EQ(watch.TellAlone(), "");
  EXPECT_THAT(watch.TellSuspects(),
              HasSubstr("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more loaded an MPI library "
                        "(libmpi.so.40) and did not join"));
}

}  // namespace
}  // namespace dtrain::shepherd
