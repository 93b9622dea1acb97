// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/worker_address.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain::stores {
namespace {

// Python 3.4 to 3.13 write nothing older by default, nor newer.
constexpr uint64_t kOldestPickle = 2, kNewestPickle = 5;
constexpr size_t kMostPickled = 4096;  // values
constexpr size_t kMostMarks = 8;       // open at a time; such a value needs two
constexpr size_t kMostPlaces = 64;
constexpr size_t kMostIp = 64;  // the longest IPv6 address, with its zone
constexpr size_t kMostKey = 1024;

// A value, by its place in Unpickler::values_: one that is put into two others is the same.
using Ref = size_t;

struct Pickled {
  enum class Kind { kInt, kText, kBytes, kTuple, kList, kDict };
  Kind kind = Kind::kInt;
  int64_t number = 0;
  absl::string_view text;  // or bytes
  std::vector<Ref> items;  // of a dict: key, value, key, …
};

// The machine that a pickle is a program for, as far as it makes data. What each opcode takes from
// the stack is checked; a value that contains itself is possible, and harmless to a reader that
// looks for one shape.
class Unpickler {
 public:
  using Kind = Pickled::Kind;
  explicit Unpickler(absl::string_view bytes) : all_(bytes), left_(bytes) {}

  absl::StatusOr<Ref> Run() {
    while (!done_) {
      at_ = all_.size() - left_.size();
      if (absl::Status step = Step(); !step.ok()) return step;
      if (values_.size() > kMostPickled) {
        return Wrong(absl::StrCat("it has more than ", kMostPickled, " values"));
      }
    }
    if (!left_.empty()) return Wrong("bytes follow its end");
    if (stack_.size() != 1 || !marks_.empty()) return Wrong("it does not end with one value");
    return stack_.front();
  }
  const Pickled& at(Ref ref) const { return values_[ref]; }

 private:
  absl::Status Wrong(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(what, " (byte ", at_, " of ", all_.size(), ")"));
  }

  std::optional<absl::string_view> Take(uint64_t size) {
    if (size > left_.size()) return std::nullopt;
    const absl::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  // Little-endian, without a sign.
  std::optional<uint64_t> TakeNumber(size_t bytes) {
    const auto taken = Take(bytes);
    if (!taken) return std::nullopt;
    uint64_t number = 0;
    for (size_t i = bytes; i-- > 0;) {
      number = number << 8 | static_cast<unsigned char>((*taken)[i]);
    }
    return number;
  }

  absl::Status Step() {
    const auto opcode = TakeNumber(1);
    if (!opcode) return Wrong("it is cut short");
    if (at_ == 0 && *opcode != 0x80) return Wrong("it does not begin as a pickle");
    switch (*opcode) {
      case 0x80:  // PROTO
        return TakeProtocol();
      case 0x95:  // FRAME
        return TakeFrame();
      case '.':  // STOP
        done_ = true;
        return absl::OkStatus();
      case '(':  // MARK
        if (marks_.size() == kMostMarks) return Wrong("its values are nested too deeply");
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case '}':  // EMPTY_DICT
        return Push({Kind::kDict, 0, {}, {}});
      case ']':  // EMPTY_LIST
        return Push({Kind::kList, 0, {}, {}});
      case ')':  // EMPTY_TUPLE
        return Push({Kind::kTuple, 0, {}, {}});
      case 'K':  // BININT1
        return TakeInteger(1);
      case 'M':  // BININT2
        return TakeInteger(2);
      case 'J':  // BININT
        return TakeInteger(4);
      case 0x8c:  // SHORT_BINUNICODE
        return TakeText(Kind::kText, 1);
      case 'X':  // BINUNICODE
        return TakeText(Kind::kText, 4);
      case 'C':  // SHORT_BINBYTES
        return TakeText(Kind::kBytes, 1);
      case 'B':  // BINBYTES
        return TakeText(Kind::kBytes, 4);
      case 0x94:  // MEMOIZE
        return Remember(memo_.size());
      case 'q':  // BINPUT
        return Remember(TakeNumber(1));
      case 'r':  // LONG_BINPUT
        return Remember(TakeNumber(4));
      case 'h':  // BINGET
        return Recall(TakeNumber(1));
      case 'j':  // LONG_BINGET
        return Recall(TakeNumber(4));
      case 0x86:  // TUPLE2
        return MakeTuple(Above(2));
      case 't':  // TUPLE
        return MakeTuple(AboveMark());
      case 'a':  // APPEND
        return PutInto(Kind::kList, Above(1));
      case 'e':  // APPENDS
        return PutInto(Kind::kList, AboveMark());
      case 's':  // SETITEM
        return PutInto(Kind::kDict, Above(2));
      case 'u':  // SETITEMS
        return PutInto(Kind::kDict, AboveMark());
      default:
        return Wrong(absl::StrFormat("opcode 0x%02x is not one that addresses need", *opcode));
    }
  }

  absl::Status TakeProtocol() {
    const auto version = TakeNumber(1);
    if (!version) return Wrong("it is cut short");
    if (at_ != 0) return Wrong("it begins twice");
    if (*version < kOldestPickle || *version > kNewestPickle) {
      return Wrong(absl::StrCat("its protocol is ", *version, ", not ", kOldestPickle, " to ",
                                kNewestPickle));
    }
    return absl::OkStatus();
  }

  // How much a reader may read ahead, which makes no difference here.
  absl::Status TakeFrame() {
    const auto size = TakeNumber(8);
    return !size || *size > left_.size() ? Wrong("it is cut short") : absl::OkStatus();
  }

  absl::Status Push(Pickled value) {
    stack_.push_back(values_.size());
    values_.push_back(std::move(value));
    return absl::OkStatus();
  }

  absl::Status TakeInteger(size_t bytes) {
    const auto number = TakeNumber(bytes);
    if (!number) return Wrong("it is cut short");
    const bool is_signed = bytes == 4;
    return Push({Kind::kInt,
                 is_signed ? static_cast<int32_t>(static_cast<uint32_t>(*number))
                           : static_cast<int64_t>(*number),
                 {},
                 {}});
  }

  absl::Status TakeText(Kind kind, size_t length_bytes) {
    const auto size = TakeNumber(length_bytes);
    const auto text = size ? Take(*size) : std::nullopt;
    if (!text) return Wrong("it is cut short");
    return Push({kind, 0, *text, {}});
  }

  absl::Status Remember(std::optional<uint64_t> as) {
    if (!as) return Wrong("it is cut short");
    // Also what lies below a mark is not to be had.
    if (stack_.size() <= Floor()) return Wrong("it keeps a value that is not there");
    memo_[*as] = stack_.back();
    if (memo_.size() > kMostPickled) {
      return Wrong(absl::StrCat("it keeps more than ", kMostPickled, " values"));
    }
    return absl::OkStatus();
  }

  absl::Status Recall(std::optional<uint64_t> what) {
    if (!what) return Wrong("it is cut short");
    const auto found = memo_.find(*what);
    if (found == memo_.end()) return Wrong("it takes a value that it has not kept");
    stack_.push_back(found->second);
    return absl::OkStatus();
  }

  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }

  // Takes them from the stack.
  std::optional<std::vector<Ref>> Above(size_t count) {
    if (stack_.size() < Floor() + count) return std::nullopt;
    const auto first = stack_.end() - static_cast<ptrdiff_t>(count);
    std::vector<Ref> taken(first, stack_.end());
    stack_.erase(first, stack_.end());
    return taken;
  }
  std::optional<std::vector<Ref>> AboveMark() {
    if (marks_.empty()) return std::nullopt;
    auto taken = Above(stack_.size() - marks_.back());
    marks_.pop_back();
    return taken;
  }

  absl::Status MakeTuple(std::optional<std::vector<Ref>> items) {
    if (!items) return Wrong("it takes values that are not there");
    return Push({Kind::kTuple, 0, {}, *std::move(items)});
  }

  absl::Status PutInto(Kind kind, const std::optional<std::vector<Ref>>& items) {
    const bool pairs = kind == Kind::kDict;
    if (!items || stack_.size() <= Floor() || (pairs && items->size() % 2 != 0)) {
      return Wrong("it takes values that are not there");
    }
    Pickled& into = values_[stack_.back()];
    if (into.kind != kind) return Wrong("it puts values into one that cannot hold them");
    into.items.insert(into.items.end(), items->begin(), items->end());
    return absl::OkStatus();
  }

  const absl::string_view all_;
  absl::string_view left_;
  size_t at_ = 0;  // where the opcode at hand is
  std::vector<Pickled> values_;
  std::vector<Ref> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::map<uint64_t, Ref> memo_;
  bool done_ = false;
};

absl::Status WrongShape(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("it is not ({interface: [(ip, port), ...]}, key): ", what));
}

absl::Status AddPlace(const Unpickler& from, const Pickled& pair, WorkerAddress& address) {
  const bool is_pair = pair.kind == Pickled::Kind::kTuple && pair.items.size() == 2;
  if (!is_pair) return WrongShape("an address is not a pair");
  const Pickled& ip = from.at(pair.items[0]);
  const Pickled& port = from.at(pair.items[1]);
  if (ip.kind != Pickled::Kind::kText || port.kind != Pickled::Kind::kInt) {
    return WrongShape("an address is not a text and a number");
  }
  if (ip.text.empty() || ip.text.size() > kMostIp) {
    return WrongShape(absl::StrCat("an address has ", ip.text.size(), " bytes"));
  }
  if (port.number < 1 || port.number > 65535) {
    return WrongShape(absl::StrCat("a port is ", port.number));
  }
  WorkerAddress::Place place{std::string(ip.text), static_cast<uint16_t>(port.number)};
  const bool known =
      std::any_of(address.places.begin(), address.places.end(),
                  [&](const auto& each) { return each.ip == place.ip && each.port == place.port; });
  if (!known && address.places.size() < kMostPlaces) address.places.push_back(std::move(place));
  return absl::OkStatus();
}

absl::StatusOr<WorkerAddress> AddressFrom(const Unpickler& from, const Pickled& whole) {
  if (whole.kind != Pickled::Kind::kTuple || whole.items.size() != 2) {
    return WrongShape("it is not a pair");
  }
  const Pickled& interfaces = from.at(whole.items[0]);
  const Pickled& key = from.at(whole.items[1]);
  if (interfaces.kind != Pickled::Kind::kDict) return WrongShape("the first is not a dict");
  if (key.kind != Pickled::Kind::kBytes) return WrongShape("the key is not bytes");
  if (key.text.empty() || key.text.size() > kMostKey) {
    return WrongShape(absl::StrCat("the key has ", key.text.size(), " bytes"));
  }
  WorkerAddress address;
  address.key = std::string(key.text);
  size_t listed = 0;  // interfaces may share a list, each time at the price of three bytes
  for (size_t i = 0; i < interfaces.items.size(); i += 2) {
    const Pickled& pairs = from.at(interfaces.items[i + 1]);
    if (pairs.kind != Pickled::Kind::kList) return WrongShape("an interface has no list");
    listed += 1 + pairs.items.size();
    if (listed > kMostPickled) return WrongShape("there are too many addresses");
    for (const Ref pair : pairs.items) {
      if (absl::Status added = AddPlace(from, from.at(pair), address); !added.ok()) return added;
    }
  }
  if (address.places.empty()) return WrongShape("there is no address");
  return address;
}

}  // namespace

absl::StatusOr<WorkerAddress> ReadWorkerAddress(absl::string_view base64) {
  constexpr size_t kMostBase64 = (kMostPickle + 2) / 3 * 4;
  std::string bytes;
  if (base64.size() > kMostBase64) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", base64.size(), " bytes; the limit is ", kMostBase64));
  }
  if (!absl::Base64Unescape(base64, &bytes)) {
    return absl::InvalidArgumentError("it is not base64");
  }
  Unpickler unpickler(bytes);
  const absl::StatusOr<Ref> whole = unpickler.Run();
  if (!whole.ok()) return whole.status();
  return AddressFrom(unpickler, unpickler.at(*whole));
}

}  // namespace dtrain::stores
