// SPDX-License-Identifier: Apache-2.0
// What is loaded, which GPU is used, and how a job begins or is refused.
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "tests/gpu/checks.h"
#include "tests/gpu/nccl.h"

namespace dtrain::gpu_check {
namespace {

using std::chrono::steady_clock;

// The files of NCCL that are mapped into this process.
std::set<std::string> LoadedNccl() {
  std::set<std::string> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos && line.find("libnccl.so", path) != std::string::npos) {
      files.insert(line.substr(path));
    }
  }
  return files;
}

// The GPU on which libdtrain works: that of its own memory.
Device DeviceOfLibrary(Result& result, const Gpu& gpu) {
  void* memory = nullptr;
  MustDtrain(result, dtrain_alloc_device(4096, &memory), "dtrain_alloc_device");
  constexpr int kOrdinal = 9;
  int ordinal = -1;
  const int error = gpu.api().PointerAttribute(&ordinal, kOrdinal, NumberOf(memory));
  MustDtrain(result, dtrain_free(memory), "dtrain_free");
  if (error != 0) {
    result.CouldNot("which GPU libdtrain uses: " + gpu.api().Text(error));
    return gpu.device();
  }
  result.Number("ordinal", ordinal);
  Device device = 0;
  gpu.Must(gpu.api().DeviceGet(&device, ordinal), "cuDeviceGet");
  return device;
}

}  // namespace

int CheckLibraries(const Arguments&) {
  Result result("libraries");
  const Cuda& cuda = Cuda::Open(result);
  int version = 0, devices = 0;
  cuda.DriverVersion(&version);
  cuda.DeviceCount(&devices);
  result.Number("cuda_driver", version);
  result.Number("gpus", devices);
  char name[256] = {};
  Device device = 0;
  if (cuda.DeviceGet(&device, 0) == 0) cuda.DeviceName(name, sizeof(name), device);
  result.Text("gpu", name);
  result.Text("uuid", cuda.UuidText(device));
  Begin(result);
  result.Number("nccl", Nccl::Open(result).Version());
  const std::set<std::string> files = LoadedNccl();
  for (const std::string& file : files) result.Text("nccl_file", file);
  if (files.size() != 1) {
    result.Miss(std::to_string(files.size()) + " files of NCCL are loaded, not one");
  }
  result.Text("dtrain", dtrain_version());
  End(result);
  return result.Print();
}

int CheckInit(const Arguments& arguments) {
  Result result("init");
  if (!arguments.Has("--refused")) {
    Gpu gpu(result, OrdinalInEnvironment());
    const auto start = steady_clock::now();
    Begin(result);
    if (SecondsSince(start) > arguments.Number("--limit", 10)) {
      result.Miss("dtrain_init took longer than " + arguments.Text("--limit", "10") + " s");
    }
    End(result);
    return result.Print();
  }
  Cuda::Open(result);
  const auto start = steady_clock::now();
  const dtrain_status status = dtrain_init(nullptr);
  const double seconds = SecondsSince(start);
  const std::string why = dtrain_last_error();
  result.Number("seconds", seconds);
  result.Text("error", why);
  if (status == DTRAIN_OK) result.Miss("two ranks on one GPU were not refused");
  if (seconds > 5) result.Miss("being refused took longer than 5 s");
  for (const char* word : {"rank 0", "rank 1", "GPU"}) {
    if (status != DTRAIN_OK && why.find(word) == std::string::npos) {
      result.Miss(std::string("the error does not name ") + word + ": " + why);
    }
  }
  result.Print();
  // The other rank says it too before the launcher ends it.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return 0;
}

int CheckRawInit(const Arguments& arguments) {
  Result result("raw-init");
  const int rank = arguments.Number("--rank", RankInEnvironment());
  const int ranks = arguments.Number("--ranks", RanksInEnvironment());
  const Gpu gpu(result, OrdinalInEnvironment());
  RawComm comm(result, arguments.Text("--id", ""), rank, ranks);
  result.Number("raw_rank", rank);
  result.Number("code", comm.error());
  result.Text("error", comm.ErrorText());
  result.Number("seconds", comm.init_seconds());
  result.Number("nccl", Nccl::Open(result).Version());
  result.Print();
  if (comm.error() == 0) comm.Destroy();
  return 0;
}

int CheckDevice(const Arguments&) {
  Result result("device");
  Cuda::Open(result);
  // No context of ours: which GPU it is to be is for libdtrain to find out.
  Begin(result);
  const Cuda& cuda = Cuda::Open(result);
  const Gpu gpu(result, 0);
  result.Text("uuid", cuda.UuidText(DeviceOfLibrary(result, gpu)));
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  result.Text("visible", visible == nullptr ? "" : visible);
  End(result);
  return result.Print();
}

int CheckHold(const Arguments& arguments) {
  Result result("hold");
  const Gpu gpu(result, OrdinalInEnvironment());
  // What is there in pieces, so that a GPU with less than that is not a failure.
  constexpr size_t kPiece = size_t{1} << 30;
  int held = 0;
  for (; held < arguments.Number("--gib", 20); ++held) {
    Pointer memory = 0;
    if (gpu.api().MemAlloc(&memory, kPiece) != 0) break;
  }
  result.Number("gib", held);
  result.Number("pid", getpid());
  result.Print();
  std::this_thread::sleep_for(std::chrono::seconds(arguments.Number("--seconds", 60)));
  return 0;
}

}  // namespace dtrain::gpu_check
