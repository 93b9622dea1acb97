// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/member.h"

#include <cstring>
#include <map>

#include "runtime/nccl/libraries.h"
#include "runtime/nccl/pinning.h"

namespace dtrain::runtime {
namespace {

constexpr uint32_t kFormat = 3;
constexpr int kSeveralPerGpu = 23003;  // from here on NCCL does that when it is asked for

void PutNumber(std::string& out, uint32_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void PutText(std::string& out, std::string_view text) {
  text = text.substr(0, 600);
  PutNumber(out, static_cast<uint32_t>(text.size()));
  out.append(text);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  uint32_t Number() {
    uint32_t number = 0;
    good_ = good_ && left_.size() >= sizeof(number);
    if (!good_) return 0;
    std::memcpy(&number, left_.data(), sizeof(number));
    left_.remove_prefix(sizeof(number));
    return number;
  }
  std::string Text() {
    const size_t size = Number();
    good_ = good_ && size <= left_.size();
    if (!good_) return "";
    std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  bool Finished() const { return good_ && left_.empty(); }

 private:
  std::string_view left_;
  bool good_ = true;
};

int NumberOf(size_t rank, const Member& member) {
  return member.job_rank >= 0 ? member.job_rank : static_cast<int>(rank);
}

MaybeError CheckErrors(const std::vector<Member>& members) {
  std::string text;
  int shown = 0, more = 0;
  for (size_t r = 0; r < members.size(); ++r) {
    if (members[r].error.empty()) continue;
    if (++shown > 4) {
      ++more;
      continue;
    }
    text += (text.empty() ? "" : "; ") + RankAt(static_cast<int>(r), members[r]) + ": " +
            Printable(members[r].error);
  }
  if (text.empty()) return std::nullopt;
  if (more > 0) text += "; and " + std::to_string(more) + " more ranks";
  return Error{DTRAIN_ERROR_DEVICE, text};
}

MaybeError CheckVersions(const std::vector<Member>& members) {
  std::map<int, std::string> ranks_of;
  for (size_t r = 0; r < members.size(); ++r) {
    std::string& ranks = ranks_of[members[r].nccl_version];
    if (ranks.size() > 200) continue;
    ranks += (ranks.empty() ? "" : ", ") + RankAt(static_cast<int>(r), members[r]);
  }
  if (ranks_of.size() <= 1) return std::nullopt;
  std::string text;
  for (const auto& [version, ranks] : ranks_of) {
    text += (text.empty() ? "" : "; ") + NcclVersionText(version) + " on " + ranks;
  }
  return Error{DTRAIN_ERROR_DEVICE,
               "the ranks have different versions of NCCL, which do not work together: " + text +
                   ". Install the same one everywhere, or name it with DTRAIN_NCCL_LIBRARY"};
}

MaybeError CheckSettings(const std::vector<Member>& members) {
  for (size_t r = 1; r < members.size(); ++r) {
    if (members[r].settings == members[0].settings) continue;
    const auto said = [](const Member& member) {
      std::string text = Printable(member.settings);
      return text.empty() ? "none of NCCL's settings" : text;
    };
    return Error{DTRAIN_ERROR_ENVIRONMENT,
                 "the ranks have different settings for NCCL, which would hang: " +
                     said(members[0]) + " on " + RankAt(0, members[0]) + ", " + said(members[r]) +
                     " on " + RankAt(static_cast<int>(r), members[r]) +
                     ". Set the same variables everywhere (dtrain launch -x NAME)"};
  }
  return std::nullopt;
}

// Why two ranks cannot be on one GPU, and what to do.
std::string Remedy(const Member& one, const Member& other) {
  const bool slices = one.uuid != other.uuid && one.pci == other.pci;
  std::string text = slices ? ", as slices of it, which NCCL does from 2.30.3 on, with "
                              "NCCL_MULTI_RANK_GPU_ENABLE=1"
                            : ", which NCCL does not support";
  if (one.pinned.empty() || other.pinned.empty() || SameGpu(one.pinned, other.pinned)) {
    return text +
           ": start at most one rank per GPU there, choose with DTRAIN_DEVICE or the program's own "
           "cudaSetDevice before dtrain_init, or set DTRAIN_SHARE_GPU=1 for tests";
  }
  return text + ". The launcher gave them " + Printable(one.pinned) + " and " +
         Printable(other.pinned) +
         ": leave CUDA_VISIBLE_DEVICES as it is, and before dtrain_init call cudaSetDevice "
         "(torch.cuda.set_device) with the number in DTRAIN_DEVICE, or not at all";
}

// By its address, which the slices of one share, and by its UUID, should the addresses be written
// differently.
MaybeError CheckDevices(const std::vector<Member>& members) {
  std::map<std::string, size_t> user_of;
  for (size_t r = 0; r < members.size(); ++r) {
    const Member& member = members[r];
    const auto [by_address, new_address] = user_of.emplace(member.node + "\npci " + member.pci, r);
    const auto [by_uuid, new_uuid] = user_of.emplace(member.node + "\nuuid " + member.uuid, r);
    if (new_address && new_uuid) continue;
    const size_t first = new_address ? by_uuid->second : by_address->second;
    const Member& other = members[first];
    if (member.share_gpu && other.share_gpu) continue;
    const bool asked = member.several_per_gpu && other.several_per_gpu;
    if (asked && member.nccl_version >= kSeveralPerGpu) continue;
    return Error{DTRAIN_ERROR_DEVICE, "rank " + std::to_string(NumberOf(first, other)) +
                                          " and rank " + std::to_string(NumberOf(r, member)) +
                                          " would both use " + Printable(member.uuid) + " (" +
                                          Printable(member.pci) + ") of host " +
                                          Printable(member.host) + Remedy(other, member)};
  }
  return std::nullopt;
}

}  // namespace

std::string EncodeMember(const Member& member) {
  std::string out;
  PutNumber(out, kFormat);
  for (const std::string* text :
       {&member.error, &member.host, &member.node, &member.uuid, &member.pci, &member.pinned,
        &member.settings, &member.unique_id}) {
    PutText(out, *text);
  }
  PutNumber(out, static_cast<uint32_t>(member.nccl_version));
  PutNumber(out, static_cast<uint32_t>(member.job_rank));
  PutNumber(out, (member.share_gpu ? 1u : 0u) | (member.several_per_gpu ? 2u : 0u) |
                     (member.stray ? 4u : 0u));
  return out;
}

std::optional<Member> DecodeMember(std::string_view bytes) {
  Reader reader(bytes);
  if (reader.Number() != kFormat) return std::nullopt;
  Member member;
  for (std::string* text : {&member.error, &member.host, &member.node, &member.uuid, &member.pci,
                            &member.pinned, &member.settings, &member.unique_id}) {
    *text = reader.Text();
  }
  member.nccl_version = static_cast<int>(reader.Number());
  member.job_rank = static_cast<int>(reader.Number());
  const uint32_t flags = reader.Number();
  member.share_gpu = (flags & 1) != 0;
  member.several_per_gpu = (flags & 2) != 0;
  member.stray = (flags & 4) != 0;
  if (!reader.Finished()) return std::nullopt;
  return member;
}

std::string NcclSettings(const std::function<const char*(const char*)>& get) {
  std::string settings;
  for (const char* name :
       {"NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_BUFFSIZE", "NCCL_NTHREADS",
        "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
        "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_LOCAL_REGISTER", "NCCL_GRAPH_REGISTER",
        "NCCL_P2P_USE_CUDA_MEMCPY"}) {
    const char* value = get(name);
    if (value != nullptr) {
      settings += (settings.empty() ? "" : " ") + std::string(name) + "=" + value;
    }
  }
  return settings;
}

MaybeError CheckMembers(const std::vector<Member>& members) {
  if (MaybeError error = CheckErrors(members)) return error;
  if (MaybeError error = CheckVersions(members)) return error;
  if (MaybeError error = CheckSettings(members)) return error;
  return CheckDevices(members);
}

std::string DescribeStrays(const std::vector<Member>& members) {
  constexpr size_t kMostNamed = 4;
  std::map<std::string, size_t> pinned;  // by node and UUID: whose
  for (size_t r = 0; r < members.size(); ++r) {
    if (!members[r].pinned.empty()) pinned.emplace(members[r].node + "\n" + members[r].pinned, r);
  }
  std::string text;
  size_t strays = 0;
  for (size_t r = 0; r < members.size(); ++r) {
    const Member& member = members[r];
    if (member.pinned.empty() || SameGpu(member.pinned, member.uuid)) continue;
    const auto owner = pinned.find(member.node + "\n" + member.uuid);
    // One of several that it has for its own.
    if (!member.stray && owner == pinned.end()) continue;
    if (++strays > kMostNamed) continue;
    text += (text.empty() ? "" : "; ") + RankAt(static_cast<int>(r), member) + " uses " +
            Printable(member.uuid) +
            (owner == pinned.end()
                 ? ""
                 : ", the one of rank " +
                       std::to_string(NumberOf(owner->second, members[owner->second]))) +
            ", and was given " + Printable(member.pinned);
  }
  if (strays > kMostNamed) text += "; and " + std::to_string(strays - kMostNamed) + " more ranks";
  return text;
}

std::string RankAt(int rank, const Member& member) {
  return "rank " + std::to_string(NumberOf(static_cast<size_t>(rank), member)) +
         (member.host.empty() ? "" : " (host " + Printable(member.host) + ")");
}

}  // namespace dtrain::runtime
