// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/carried_worker.h"

#include <sys/utsname.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dtrain::bench {
namespace {

namespace fs = std::filesystem;

constexpr char kLibrary[] = "libdtrain.so.0";

}  // namespace

absl::StatusOr<CarriedWorker> CarriedWorker::Make(const std::string& program) {
  utsname system{};
  (void)uname(&system);
  // Debian's place for libraries, by the machine.
  const std::string multiarch = absl::StrCat(system.machine, "-linux-gnu");
  const fs::path lib = fs::path(program).parent_path().parent_path() / "lib";
  std::error_code error;
  fs::path library = lib / kLibrary;
  if (!fs::exists(library, error)) library = lib / multiarch / kLibrary;
  if (!fs::exists(library, error)) {
    return absl::NotFoundError(absl::StrCat("there is no ", kLibrary, " in ", lib.string()));
  }
  auto folder = os::ScratchFolder::Make(os::TemporaryDirectories());
  if (!folder.ok()) return folder.status();
  const fs::path to = folder->path();
  // The program looks for its library where it was installed, relative to itself.
  const auto step = [&](auto call) {
    if (!error) call();
  };
  error.clear();
  step([&] { fs::create_directories(to / "lib" / multiarch, error); });
  step([&] { fs::create_directory(to / "bin", error); });
  step([&] { fs::copy_file(program, to / command(), error); });
  step([&] { fs::copy_file(library, to / "lib" / kLibrary, error); });
  step([&] {
    fs::create_symlink(fs::path("..") / kLibrary, to / "lib" / multiarch / kLibrary, error);
  });
  if (error) return absl::UnavailableError(absl::StrCat(to.string(), ": ", error.message()));
  return CarriedWorker(*std::move(folder));
}

}  // namespace dtrain::bench
