// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/collective.h"

#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

std::string KindText(const Collective& what) {
  switch (what.kind) {
    case Collective::Kind::kBarrier:
      return "barrier";
    case Collective::Kind::kAllreduce:
      return std::string("allreduce ") + OpName(what.op);
    case Collective::Kind::kBroadcast:
      return "broadcast from rank " + std::to_string(what.root);
    case Collective::Kind::kAllgather:
      return "allgather";
    case Collective::Kind::kReduceScatter:
      return std::string("reduce-scatter ") + OpName(what.op);
    case Collective::Kind::kAlltoall:
      return "all-to-all";
    case Collective::Kind::kReduce:
      return std::string("reduce ") + OpName(what.op) + " to rank " + std::to_string(what.root);
  }
  return "unknown collective";
}

}  // namespace

uint32_t NameHash(std::string_view name) {
  if (name.empty()) return 0;
  uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619;
  return hash | 1;
}

std::string Describe(const Collective& what) {
  if (what.kind == Collective::Kind::kBarrier) return KindText(what);
  return KindText(what) + " of " + std::to_string(what.count) + " " + TypeName(what.type);
}

}  // namespace dtrain::runtime
