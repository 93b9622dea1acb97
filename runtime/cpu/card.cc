// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/card.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace dtrain::runtime {
namespace {

constexpr size_t kCardFields = 11;
constexpr size_t kStandingFields = 4;
constexpr size_t kMachineFields = 5;

// Texts as one: each behind its length.
std::string Pack(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text += std::to_string(field.size()) + ":" + field;
  return text;
}

// nullopt when `text` is not made of such.
std::optional<std::vector<std::string>> Unpack(std::string_view text) {
  std::vector<std::string> fields;
  while (!text.empty()) {
    size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    if (error != std::errc() || end == text.data() + text.size() || *end != ':') return {};
    text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
    if (text.size() < length) return {};
    fields.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return fields;
}

// The fields of a record, one after the other. What is not as it should be makes it bad for good.
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) {
    if (auto fields = Unpack(text)) {
      fields_ = std::move(*fields);
    } else {
      good_ = false;
    }
  }
  size_t left() const { return good_ ? fields_.size() - at_ : 0; }
  bool good() const { return good_; }

  std::string Text() {
    good_ = good_ && at_ < fields_.size();
    return good_ ? std::move(fields_[at_++]) : "";
  }
  template <typename Number>
  Number In(Number lowest, Number highest) {
    const std::string text = Text();
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    good_ = good_ && error == std::errc() && end == text.data() + text.size() && lowest <= value &&
            value <= highest;
    return good_ ? value : lowest;
  }
  bool Flag() { return In(0, 1) == 1; }
  std::string Processors() {
    std::string text = Text();
    good_ = good_ && text.find_first_not_of("01") == std::string::npos;
    return text;
  }
  Token Secret() {
    const std::string text = Text();
    Token token{};
    good_ = good_ && text.size() == token.size();
    if (good_) std::copy(text.begin(), text.end(), token.begin());
    return token;
  }

 private:
  std::vector<std::string> fields_;
  size_t at_ = 0;
  bool good_ = true;
};

std::string FlagText(bool flag) { return flag ? "1" : "0"; }

Standing Together(const std::vector<Standing>& standings, int size) {
  Standing all{0, true, true, true, {}};
  std::map<std::string, Machine> machines;
  for (const Standing& standing : standings) {
    all.ranks += standing.ranks;
    all.attached &= standing.attached;
    all.may_read &= standing.may_read;
    all.arenas &= standing.arenas;
    for (const Machine& machine : standing.machines) {
      const auto [found, added] = machines.emplace(machine.boot, machine);
      if (!added) found->second.Add(machine);
    }
  }
  for (auto& [boot, machine] : machines) {
    if (all.ranks == size && !(machine.several_nodes && machine.crowded())) continue;
    all.machines.push_back(std::move(machine));
  }
  return all;
}

}  // namespace

std::string EncodeCard(const RankCard& card) {
  const NodeEndpoint& at = card.endpoint;
  return Versioned(Pack({card.processors, std::to_string(card.pid), std::to_string(card.probe),
                         std::to_string(card.arena_fd), std::to_string(card.arena_bytes),
                         std::to_string(card.arena_cookie), std::to_string(card.segment_fd),
                         std::to_string(card.segment_cookie), at.ip, std::to_string(at.port),
                         std::string(at.token.data(), at.token.size())}));
}

Result<RankCard> DecodeCard(int rank, const std::string& text) {
  const auto body = Unversioned(rank, text);
  if (!body.ok()) return body.error();
  FieldReader fields(*body);
  if (fields.left() != kCardFields) return UnreadableRecord(rank);
  RankCard card;
  card.processors = fields.Processors();
  card.pid = fields.In<pid_t>(1, INT32_MAX);
  card.probe = fields.In<uint64_t>(0, UINT64_MAX);
  card.arena_fd = fields.In(-1, INT32_MAX);
  card.arena_bytes = fields.In<size_t>(0, SIZE_MAX);
  card.arena_cookie = fields.In<uint64_t>(0, UINT64_MAX);
  card.segment_fd = fields.In(-1, INT32_MAX);
  card.segment_cookie = fields.In<uint64_t>(0, UINT64_MAX);
  card.endpoint.ip = fields.Text();
  card.endpoint.port = fields.In<uint16_t>(0, UINT16_MAX);
  card.endpoint.token = fields.Secret();
  if (!fields.good()) return UnreadableRecord(rank);
  return card;
}

void Machine::Add(const Machine& more) {
  several_nodes |= more.several_nodes || more.node != node;
  ranks += more.ranks;
  processors.resize(std::max(processors.size(), more.processors.size()), '0');
  for (size_t i = 0; i < more.processors.size(); ++i) {
    if (more.processors[i] == '1') processors[i] = '1';
  }
}

bool Machine::crowded() const {
  return ranks > std::count(processors.begin(), processors.end(), '1');
}

std::string EncodeStanding(const Standing& standing) {
  std::vector<std::string> fields{std::to_string(standing.ranks), FlagText(standing.attached),
                                  FlagText(standing.may_read), FlagText(standing.arenas)};
  for (const Machine& machine : standing.machines) {
    fields.insert(fields.end(),
                  {machine.boot, std::to_string(machine.node), FlagText(machine.several_nodes),
                   std::to_string(machine.ranks), machine.processors});
  }
  return Pack(fields);
}

Result<Standing> DecodeStanding(int rank, const std::string& text) {
  FieldReader fields(text);
  if (fields.left() < kStandingFields || (fields.left() - kStandingFields) % kMachineFields != 0) {
    return UnreadableRecord(rank);
  }
  Standing standing;
  standing.ranks = fields.In<int64_t>(1, INT32_MAX);
  standing.attached = fields.Flag();
  standing.may_read = fields.Flag();
  standing.arenas = fields.Flag();
  while (fields.left() > 0) {
    Machine machine;
    machine.boot = fields.Text();
    machine.node = fields.In(0, INT32_MAX);
    machine.several_nodes = fields.Flag();
    machine.ranks = fields.In<int64_t>(1, INT32_MAX);
    machine.processors = fields.Processors();
    standing.machines.push_back(std::move(machine));
  }
  if (!fields.good()) return UnreadableRecord(rank);
  return standing;
}

Fold FoldStandings(int size) {
  return [size](const std::vector<Contribution>& all) -> Result<std::string> {
    std::vector<Standing> standings;
    for (const Contribution& one : all) {
      auto standing = DecodeStanding(one.rank, one.bytes);
      if (!standing.ok()) return standing.error();
      standings.push_back(std::move(*standing));
    }
    return EncodeStanding(Together(standings, size));
  };
}

}  // namespace dtrain::runtime
