// SPDX-License-Identifier: Apache-2.0
// What a hostile neighbour says to libdtrain: the first byte chooses where.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/boot/bootstrap.h"
#include "runtime/boot/pmi_client.h"
#include "runtime/boot/topology.h"
#include "runtime/cpu/card.h"
#include "runtime/engine/backend.h"
#include "runtime/engine/matching.h"
#include "runtime/engine/statement.h"
#include "runtime/nccl/member.h"
#include "runtime/shm/local_group.h"
#include "tests/fuzz/expect.h"

namespace dtrain::runtime {
namespace {

void ExpectText(const std::string& text) {
  DTRAIN_CHECK(!text.empty());
  for (const char c : text) DTRAIN_CHECK(c >= ' ' && c <= '~');
}

// As many whole things of one kind as there are bytes for.
template <typename T>
std::vector<T> Things(std::string_view bytes, size_t most) {
  std::vector<T> things(std::min(bytes.size() / sizeof(T), most));
  if (!things.empty()) std::memcpy(things.data(), bytes.data(), things.size() * sizeof(T));
  return things;
}

void Requests(std::string_view bytes) {
  const auto requests = Things<Descriptor>(bytes, 20);
  std::vector<int> ranks;
  for (size_t r = 0; r < requests.size(); ++r) ranks.push_back(static_cast<int>(r));
  if (requests.empty()) return;
  if (const MaybeError error = CompareRequests(ranks, requests)) ExpectText(error->message);
}

template <size_t kMost>
void Offers(std::string_view bytes) {
  auto offer = Things<int32_t>(bytes, OfferWords(kMost));
  offer.resize(OfferWords(kMost), INT32_MAX);
  const Agreement agreement = ReadOffers(offer);
  DTRAIN_CHECK(agreement.count <= kMost);
  DTRAIN_CHECK(!agreement.differs || agreement.count == 0);
}

// One word chooses the room of a list, the rest are the lists of several ranks.
void Lists(std::string_view bytes) {
  const auto words = Things<int64_t>(bytes, 500);
  if (words.empty()) return;
  const size_t each = ListWords(static_cast<uint64_t>(words[0]) % 8);
  std::vector<PendingList> lists;
  size_t most = 0;
  for (size_t at = 1; at + each <= words.size(); at += each) {
    auto list = UnpackList(std::span(words).subspan(at, each));
    if (!list) continue;
    most = std::max(most, list->pending.size());
    lists.push_back(std::move(*list));
  }
  ExpectText(CompareFirst(lists));
  for (const bool joined : {false, true}) {
    if (joined) lists.push_back({true, false, false, {}});
    const Matches matches = Match(lists);
    DTRAIN_CHECK(matches.common.size() + matches.differing.size() <= most);
    for (const Pending& one : matches.common) DTRAIN_CHECK(!joined || CollectiveOf(one.outline));
  }
}

void Members(std::string_view bytes) {
  std::vector<Member> members;
  for (size_t half : {size_t{0}, bytes.size() / 2}) {
    if (auto member = DecodeMember(bytes.substr(half))) members.push_back(std::move(*member));
  }
  if (const MaybeError error = CheckMembers(members)) ExpectText(error->message);
}

void Hellos(std::string_view bytes) {
  Hello hello;
  if (!DecodeHello(std::string(bytes), hello)) return;
  const auto chosen = ChooseNccl({hello, Hello{}});
  if (!chosen.ok()) ExpectText(chosen.error().message);
}

void Cards(std::string_view bytes) {
  const std::string text(bytes);
  for (const std::string& one : {text, Versioned(text)}) {
    const auto card = DecodeCard(3, one);
    if (!card.ok()) ExpectText(card.error().message);
    if (card.ok()) DTRAIN_CHECK(DecodeCard(3, EncodeCard(*card)).ok());
  }
  const auto folded = FoldOutcomes(0, {DecodeOutcome(1, text), {2, text}}, FoldStandings(3));
  if (!folded.result.ok()) ExpectText(folded.result.error().message);
}

void Mapping(std::string_view bytes) {
  constexpr int kRanks = 100;
  const auto nodes = ParseProcessMapping(bytes, kRanks);
  if (!nodes) return;
  DTRAIN_CHECK(nodes->size() == kRanks);
  const Places places = PlacesOf(kRanks - 1, *nodes);
  DTRAIN_CHECK(places.local < places.local_size() && places.node < places.node_count());
  DTRAIN_CHECK(ParseProcessMapping(FormatProcessMapping(*nodes), kRanks) == nodes);
}

// A PMI server that has said it all in advance, and hangs up.
void Launcher(std::string_view bytes) {
  int pair[2];
  DTRAIN_CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  (void)!write(pair[0], bytes.data(), std::min(bytes.size(), size_t{1} << 16));
  shutdown(pair[0], SHUT_WR);
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  auto pmi = PmiClient::Connect(pair[1], deadline);
  if (pmi.ok()) {
    PmiBootstrap bootstrap(*pmi, 0, 3, 0);
    const auto folded = bootstrap.Combine(EncodeStanding({}), FoldStandings(3), deadline);
    if (!folded.ok()) ExpectText(folded.error().message);
  } else {
    ExpectText(pmi.error().message);
  }
  close(pair[0]);
}

}  // namespace
}  // namespace dtrain::runtime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  using namespace dtrain::runtime;  // NOLINT(google-build-using-namespace)
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  // By place, which is the first byte of the seeds.
  constexpr void (*kTargets[])(std::string_view) = {
      Requests, Offers<1>, Lists, Offers<kMostOffered>, Members, Hellos, Mapping,
      Launcher, Lists,     Cards};
  kTargets[data[0] % std::size(kTargets)](bytes);
  return 0;
}
