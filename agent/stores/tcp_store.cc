// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/tcp_store.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::stores {
namespace {

// What an entry of a map costs besides its texts.
constexpr size_t kPerEntry = 128;
// A key that somebody waits for or watches is in two maps.
size_t CostOfKey(const std::string& key) { return 2 * (key.size() + kPerEntry); }
size_t CostOf(const std::string& key, const std::string& value) {
  return key.size() + value.size() + kPerEntry;
}

// For each of Gloo's groups every rank puts an address, of 136 bytes, for each of the others, and
// nobody removes it. There is room for so many groups of all ranks, within a part of the memory.
constexpr size_t kGroups = 8, kPerPair = 160, kPartOfMemory = 4;

constexpr char kStopWaiting = 0, kWaitCanceled = 1;
constexpr char kReady = 0, kNotReady = 1;

// In the machine's own order, as PyTorch reads them.
template <typename Number>
std::string Raw(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}

void AddText(const std::string& text, std::string& out) {
  out += Raw<uint64_t>(text.size());
  out += text;
}

std::string Text(const std::string& text) {
  std::string out;
  AddText(text, out);
  return out;
}

// As std::stoll does it: blanks before it and anything after it do not matter.
std::optional<int64_t> Decimal(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const int64_t number = strtoll(text.c_str(), &end, 10);
  if (end == text.c_str() || errno != 0) return std::nullopt;
  return number;
}

}  // namespace

TcpLimits LimitsFor(size_t ranks, size_t memory) {
  TcpLimits limits;
  const size_t wanted = limits.bytes + kGroups * kPerPair * ranks * ranks;
  limits.bytes = std::max(limits.bytes, std::min(wanted, memory / kPartOfMemory));
  return limits;
}

TcpStore::Outcome TcpStore::Handle(Client from, TcpRequest request) {
  replies_.clear();
  absl::Status refused = Dispatch(from, request);
  return {std::exchange(replies_, {}), std::move(refused)};
}

absl::Status TcpStore::Dispatch(Client from, TcpRequest& request) {
  std::vector<std::string>& texts = request.texts;
  switch (request.op) {
    case TcpOp::kSet:
      return Put(texts[0], std::move(texts[1]));
    case TcpOp::kCompareSet:
      return CompareSet(from, request);
    case TcpOp::kAdd:
      return Add(from, texts[0], request.number);
    case TcpOp::kWait:
      return AwaitKeys(from, texts);
    case TcpOp::kWatchKey:
      return Watch(from, texts[0]);
    case TcpOp::kAppend:
      return Append(texts[0], texts[1]);
    case TcpOp::kMultiGet:
      return MultiGet(from, texts);
    case TcpOp::kMultiSet:
      return MultiSet(texts);
    case TcpOp::kQueuePush:
      return QueuePush(texts[0], std::move(texts[1]));
    case TcpOp::kListKeys:
      return ListKeys(from);
    case TcpOp::kBarrier:
      return Barrier(from, texts[0], request.number);
    default:
      AnswerSimply(from, request);
      return absl::OkStatus();
  }
}

// What cannot fail.
void TcpStore::AnswerSimply(Client from, const TcpRequest& request) {
  const std::vector<std::string>& texts = request.texts;
  switch (request.op) {
    case TcpOp::kGet:
      return Answer(from, Text(ValueOf(texts[0])));
    case TcpOp::kCheck:
      return Answer(from, {AllExist(texts) ? kReady : kNotReady});
    case TcpOp::kGetNumKeys:
      return Answer(from, Raw<int64_t>(static_cast<int64_t>(values_.size())));
    case TcpOp::kDeleteKey:
      return Delete(from, texts[0]);
    case TcpOp::kCancelWait:
      Forget(from);
      return Answer(from, {kWaitCanceled});
    case TcpOp::kPing:
      return Answer(from, Raw(static_cast<uint32_t>(request.number)));
    case TcpOp::kQueuePop:
      return QueuePop(from, texts[0]);
    case TcpOp::kQueueLen: {
      const auto queue = queues_.find(texts[0]);
      const size_t length = queue == queues_.end() ? 0 : queue->second.size();
      return Answer(from, Raw<int64_t>(static_cast<int64_t>(length)));
    }
    default:
      return;  // VALIDATE has no answer
  }
}

absl::Status TcpStore::Room(size_t more) const {
  if (bytes_ + more <= limits_.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("it wants to put more than the ", limits_.bytes, " bytes that all ranks may"));
}

absl::Status TcpStore::Put(const std::string& key, std::string value) {
  auto place = values_.find(key);
  const bool is_new = place == values_.end();
  const size_t before = is_new ? 0 : CostOf(key, place->second), after = CostOf(key, value);
  if (absl::Status room = Room(after > before ? after - before : 0); !room.ok()) return room;
  if (is_new && values_.size() >= limits_.keys) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it wants to put one key more than the ", limits_.keys, " that may be there"));
  }
  if (is_new) place = values_.try_emplace(key).first;
  bytes_ += after - before;
  const std::string old = std::exchange(place->second, std::move(value));
  Wake(key);
  TellWatchers(key, is_new ? Change::kCreated : Change::kUpdated, old, place->second);
  return absl::OkStatus();
}

absl::Status TcpStore::Append(const std::string& key, const std::string& more) {
  const auto place = values_.find(key);
  if (place == values_.end()) return Put(key, more);
  if (absl::Status room = Room(more.size()); !room.ok()) return room;
  if (place->second.size() + more.size() > kMostTcpValue) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it sent APPEND to a value that would have more than the ", kMostTcpValue,
                     " bytes allowed"));
  }
  place->second += more;
  bytes_ += more.size();
  Wake(key);
  TellWatchers(key, Change::kAppended, "", more);
  return absl::OkStatus();
}

// For a key that is missing it answers what the client expected, as if that were there: PyTorch's
// does.
absl::Status TcpStore::CompareSet(Client from, TcpRequest& request) {
  const std::string& key = request.texts[0];
  std::string& expected = request.texts[1];
  std::string& desired = request.texts[2];
  const auto place = values_.find(key);
  if (place == values_.end() && !expected.empty()) {
    Answer(from, Text(expected));
    return absl::OkStatus();
  }
  if (place == values_.end() || place->second == expected) {
    if (absl::Status put = Put(key, std::move(desired)); !put.ok()) return put;
  }
  Answer(from, Text(ValueOf(key)));
  return absl::OkStatus();
}

absl::Status TcpStore::Add(Client from, const std::string& key, int64_t delta) {
  int64_t sum = delta;
  if (const auto place = values_.find(key); place != values_.end()) {
    const std::optional<int64_t> number = Decimal(place->second);
    if (!number || __builtin_add_overflow(*number, delta, &sum)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "it sent ADD of ", delta, " to a value that is not a number, or would become too large"));
    }
  }
  if (absl::Status put = Put(key, absl::StrCat(sum)); !put.ok()) return put;
  Answer(from, Raw(sum));
  return absl::OkStatus();
}

absl::Status TcpStore::MultiGet(Client from, const std::vector<std::string>& keys) {
  size_t size = 0;
  for (const std::string& key : keys) size += sizeof(uint64_t) + ValueOf(key).size();
  if (size > limits_.reply) {
    return absl::ResourceExhaustedError(absl::StrCat("it sent MULTI_GET of values of ", size,
                                                     " bytes; the limit is ", limits_.reply));
  }
  std::string all;
  all.reserve(size);
  for (const std::string& key : keys) AddText(ValueOf(key), all);
  if (!keys.empty()) Answer(from, std::move(all));
  return absl::OkStatus();
}

absl::Status TcpStore::MultiSet(std::vector<std::string>& texts) {
  for (size_t i = 0; i + 1 < texts.size(); i += 2) {
    if (absl::Status put = Put(texts[i], std::move(texts[i + 1])); !put.ok()) return put;
  }
  return absl::OkStatus();
}

absl::Status TcpStore::ListKeys(Client from) {
  size_t size = sizeof(int64_t);
  for (const auto& [key, value] : values_) size += sizeof(uint64_t) + key.size();
  if (size > limits_.reply) {
    return absl::ResourceExhaustedError(absl::StrCat("it sent LIST_KEYS for keys of ", size,
                                                     " bytes; the limit is ", limits_.reply));
  }
  std::string all = Raw<int64_t>(static_cast<int64_t>(values_.size()));
  for (const auto& [key, value] : values_) AddText(key, all);
  Answer(from, std::move(all));
  return absl::OkStatus();
}

void TcpStore::Delete(Client from, const std::string& key) {
  const auto place = values_.find(key);
  Answer(from, Raw<int64_t>(place == values_.end() ? 0 : 1));
  if (place == values_.end()) return;
  bytes_ -= CostOf(key, place->second);
  const std::string old = std::move(place->second);
  values_.erase(place);
  TellWatchers(key, Change::kDeleted, old, "");
}

// One of those who wait: the others would find nothing.
absl::Status TcpStore::QueuePush(const std::string& key, std::string value) {
  const size_t cost = CostOf(key, value);
  if (absl::Status room = Room(cost); !room.ok()) return room;
  bytes_ += cost;
  queues_[key].push_back(std::move(value));
  Wake(key, /*one=*/true);
  return absl::OkStatus();
}

// How many there were, and the first. A client that wants to wait has sent WAIT before.
void TcpStore::QueuePop(Client from, const std::string& key) {
  const auto queue = queues_.find(key);
  if (queue == queues_.end()) return Answer(from, Raw<int64_t>(0));
  std::string answer = Raw<int64_t>(static_cast<int64_t>(queue->second.size()));
  AddText(queue->second.front(), answer);
  bytes_ -= CostOf(key, queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) queues_.erase(queue);
  Answer(from, std::move(answer));
}

absl::Status TcpStore::AwaitKeys(Client from, const std::vector<std::string>& keys) {
  std::set<std::string> missing;
  for (const std::string& key : keys) {
    if (!Exists(key)) missing.insert(key);
  }
  if (!missing.empty()) return Register(from, std::move(missing));
  Forget(from);
  Answer(from, {kStopWaiting});
  return absl::OkStatus();
}

// It counts in the value itself. Who arrives when all have may go on at once.
absl::Status TcpStore::Barrier(Client from, const std::string& key, int64_t size) {
  int64_t count = 1;
  if (const auto place = values_.find(key); place != values_.end()) {
    const std::optional<int64_t> number = Decimal(place->second);
    if (!number || __builtin_add_overflow(*number, 1, &count)) {
      return absl::InvalidArgumentError(
          "it sent BARRIER on a value that is not a number, or is too large");
    }
  }
  const std::string text = absl::StrCat(count);
  if (count >= size) {
    if (absl::Status put = Put(key, text); !put.ok()) return put;
    Forget(from);
    Answer(from, {kStopWaiting});
    return absl::OkStatus();
  }
  // Not Put, which would wake those who came before.
  auto place = values_.find(key);
  const size_t before = place == values_.end() ? 0 : CostOf(key, place->second);
  if (absl::Status room = Room(CostOf(key, text)); !room.ok()) return room;
  if (absl::Status waits = Register(from, {key}); !waits.ok()) return waits;
  bytes_ += CostOf(key, text) - before;
  values_[key] = text;
  return absl::OkStatus();
}

absl::Status TcpStore::Watch(Client from, const std::string& key) {
  if (!watched_[from].contains(key)) {
    if (absl::Status room = Room(CostOfKey(key)); !room.ok()) return room;
    bytes_ += CostOfKey(key);
    watched_[from].insert(key);
    watchers_[key].insert(from);
  }
  Answer(from, {static_cast<char>(Change::kRegistered)});
  return absl::OkStatus();
}

const std::string& TcpStore::ValueOf(const std::string& key) const {
  static const auto& none = *new std::string;
  const auto found = values_.find(key);
  return found == values_.end() ? none : found->second;
}

bool TcpStore::Exists(const std::string& key) const {
  return values_.contains(key) || queues_.contains(key);
}

bool TcpStore::AllExist(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [this](const std::string& key) { return Exists(key); });
}

// Each connection waits for one thing at a time: a new wait takes the place of the one before.
absl::Status TcpStore::Register(Client from, std::set<std::string> missing) {
  Forget(from);
  size_t cost = 0;
  for (const std::string& key : missing) cost += CostOfKey(key);
  if (absl::Status room = Room(cost); !room.ok()) return room;
  bytes_ += cost;
  const uint64_t ticket = ++last_ticket_;
  for (const std::string& key : missing) waiters_[key].emplace(ticket, from);
  waits_[from] = {ticket, std::move(missing)};
  return absl::OkStatus();
}

void TcpStore::Forget(Client client) {
  const auto wait = waits_.find(client);
  if (wait == waits_.end()) return;
  for (const std::string& key : wait->second.missing) {
    bytes_ -= CostOfKey(key);
    const auto waiters = waiters_.find(key);
    waiters->second.erase(wait->second.ticket);
    if (waiters->second.empty()) waiters_.erase(waiters);
  }
  waits_.erase(wait);
}

void TcpStore::Leave(Client client) {
  Forget(client);
  const auto watched = watched_.find(client);
  if (watched == watched_.end()) return;
  for (const std::string& key : watched->second) {
    bytes_ -= CostOfKey(key);
    const auto watchers = watchers_.find(key);
    watchers->second.erase(client);
    if (watchers->second.empty()) watchers_.erase(watchers);
  }
  watched_.erase(watched);
}

void TcpStore::Wake(const std::string& key, bool one) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  std::map<uint64_t, Client>& waiters = found->second;
  bool woken = false;
  while (!waiters.empty() && !(one && woken)) {
    const auto wait = waits_.find(waiters.begin()->second);
    waiters.erase(waiters.begin());
    bytes_ -= CostOfKey(key);
    wait->second.missing.erase(key);
    if (!wait->second.missing.empty()) continue;
    Answer(wait->first, {kStopWaiting});
    waits_.erase(wait);
    woken = true;
  }
  if (waiters.empty()) waiters_.erase(found);
}

void TcpStore::TellWatchers(const std::string& key, Change change, const std::string& before,
                            const std::string& now) {
  const auto watchers = watchers_.find(key);
  if (watchers == watchers_.end()) return;
  std::string text(1, static_cast<char>(change));
  for (const std::string* part : {&key, &before, &now}) AddText(*part, text);
  const auto bytes = std::make_shared<const std::string>(std::move(text));
  for (const Client client : watchers->second) replies_.push_back({client, bytes});
}

void TcpStore::Answer(Client to, std::string bytes) {
  replies_.push_back({to, std::make_shared<const std::string>(std::move(bytes))});
}

}  // namespace dtrain::stores
