// SPDX-License-Identifier: Apache-2.0
// The door of a host of an elastic Horovod job: its ranks, real processes, on one side, and we as
// the launcher on the other.
#include <sys/stat.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "store_fixture.h"

namespace dtrain::shepherd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Longer than the server waits for a request or for an answer to be taken.
constexpr Duration kBeyondPatience = std::chrono::milliseconds(3500);

// What Horovod has for a worker, by the names that its pickles have. The arguments: what becomes of
// a notice ("take", "refuse" its MAC, be "deaf").
constexpr char kListener[] = R"(
import base64, hashlib, hmac, os, pickle, socket, struct, sys, types, urllib.request

class HostsUpdatedRequest:
    def __init__(self, timestamp, res):
        self.timestamp, self.res = timestamp, res
class AckResponse:
    pass
for name in ("horovod", "horovod.runner", "horovod.runner.elastic", "horovod.runner.elastic.worker"):
    sys.modules[name] = types.ModuleType(name)
worker = sys.modules["horovod.runner.elastic.worker"]
for kind in (HostsUpdatedRequest, AckResponse):
    kind.__module__ = worker.__name__
    setattr(worker, kind.__name__, kind)

def mac(key, body):
    return hmac.new(key, body, hashlib.sha256).digest()
def read(connection, size):
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            sys.exit("the notice ends early")
        data += piece
    return data

how = sys.argv[1]
listener = socket.create_server(("", 0))
port = listener.getsockname()[1]
if how == "deaf":
    listener.close()
key = os.urandom(32)
value = base64.b64encode(pickle.dumps(({"lo": [("127.0.0.1", port)]}, key), 5))
door = "http://%s:%s/worker_addresses/%s:%s" % tuple(os.environ["HOROVOD_" + name] for name in (
    "GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT", "HOSTNAME", "LOCAL_RANK"))
request = urllib.request.Request(door, data=value, method="PUT")
print("registered", urllib.request.urlopen(request).status)
while how != "deaf":
    connection = listener.accept()[0]
    theirs = read(connection, 32)
    body = read(connection, struct.unpack("i", read(connection, 4))[0])
    if theirs != mac(key, body):
        sys.exit("the notice has a wrong MAC")
    notice = pickle.loads(body)
    print("heard", type(notice).__name__, notice.timestamp, notice.res, flush=True)
    body = pickle.dumps(AckResponse())
    connection.sendall(mac(key if how == "take" else b"?", body) + struct.pack("i", len(body)) + body)
    connection.close()
sys.stdin.read()
)";

class ElasticDoorTest : public StoreFixture {
 protected:
  // Of a host "here", whose ranks are those from 4 on of 10. In the script, ask VERB TARGET BODY
  // makes a request and prints the answer's status and body.
  v1::JobPart Elastic(int workers, const std::string& script) {
    v1::JobPart part = MeetingPart(
        workers, 0,
        "ask() {\n"
        "  exec 5<>/dev/tcp/$HOROVOD_GLOO_RENDEZVOUS_ADDR/$HOROVOD_GLOO_RENDEZVOUS_PORT || return\n"
        "  printf '%s %s HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n%s' $1 $2 ${#3} "
        "\"$3\" >&5\n"
        "  read -r _ status _ <&5 || { echo closed; return; }\n"
        "  while read -r line <&5 && [ \"$line\" != $'\\r' ]; do :; done\n"
        "  echo $status $(cat <&5); exec 5>&-\n"
        "}\n" +
            script);
    part.clear_contracts();
    part.add_contracts(v1::CONTRACT_HOROVOD);
    *part.mutable_elastic()->mutable_seats() = SeatsFrom(4, workers).seats();
    part.mutable_meeting()->mutable_elastic()->set_host(part.host());
    part.mutable_meeting()->mutable_elastic()->set_slots(static_cast<uint32_t>(workers));
    return part;
  }
  static v1::Seats SeatsFrom(uint32_t first, int workers) {
    v1::Seats seats;
    for (uint32_t i = 0; i < static_cast<uint32_t>(workers); ++i) {
      v1::Seat& seat = *seats.add_seats();
      seat.set_rank(first + i);
      seat.set_size(10);
      seat.set_local_rank(i);
      seat.set_local_size(static_cast<uint32_t>(workers));
      seat.set_cross_rank(2);
      seat.set_cross_size(3);
    }
    return seats;
  }
  void Tell(uint64_t round, v1::ElasticDown down) {
    v1::JobRequest request;
    down.set_round(round);
    *request.mutable_elastic() = std::move(down);
    Send(request);
  }
  void Open(uint64_t round, uint32_t first, int workers) {
    v1::ElasticDown down;
    *down.mutable_open() = SeatsFrom(first, workers);
    Tell(round, down);
  }
  void RemoveElsewhere(uint64_t round, uint64_t id) {
    v1::ElasticDown down;
    down.mutable_removed()->set_scope("s");
    down.mutable_removed()->set_key("k");
    down.mutable_removed()->set_id(id);
    Tell(round, down);
  }
  void Notify(uint64_t round, uint32_t timestamp) {
    v1::ElasticDown down;
    down.mutable_notice()->set_timestamp(timestamp);
    down.mutable_notice()->set_change(3);
    Tell(round, down);
  }
  // How many the door holds, as it said last.
  uint32_t Waiting() const {
    uint32_t waiting = 0;
    for (const v1::ElasticUp& up : elastic_) {
      if (up.has_waiting()) waiting = up.waiting();
    }
    return waiting;
  }
  const v1::ElasticUp* Last(v1::ElasticUp::KindCase kind) const {
    const auto found = std::find_if(elastic_.rbegin(), elastic_.rend(),
                                    [kind](const auto& up) { return up.kind_case() == kind; });
    return found == elastic_.rend() ? nullptr : &*found;
  }
  bool UntilUp(v1::ElasticUp::KindCase kind) {
    return Until([this, kind] { return Last(kind) != nullptr; });
  }
  bool UntilWaiting(uint32_t waiting) {
    return Until([this, waiting] { return Waiting() == waiting; });
  }
  pid_t DoorPid() const { return HelperPid("dtrain-store"); }
  os::UniqueFd Come(const std::string& request) {
    os::UniqueFd client = Connect(part_.network().rendezvous_port());
    Say(client, request);
    return client;
  }
  static void Say(const os::UniqueFd& client, const std::string& text) {
    EXPECT_EQ(send(client.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // All that comes until the end.
  std::string Hear(const os::UniqueFd& client) {
    std::string heard;
    bool over = false;
    loop::FdWatch watch(loop_, client.get());
    std::function<void()> read = [&] {
      char bytes[4096];
      const ssize_t got = recv(client.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got > 0) heard.append(bytes, static_cast<size_t>(got));
      over = got == 0;
      if (!over) watch.OnReadable(read);
    };
    watch.OnReadable(read);
    EXPECT_TRUE(Until([&over] { return over; }));
    return heard;
  }
};

TEST_F(ElasticDoorTest, RanksWaitUntilTheirRoundBeginsHoweverLongThatTakes) {
  Start(Elastic(2,
                "echo $HOROVOD_ELASTIC $HOROVOD_SIZE $HOROVOD_RANK $HOROVOD_LOCAL_RANK\n"
                "ask PUT /global/rank_$HOROVOD_RANK here\n"
                "until answer=$(ask GET /global/0) && [ \"$answer\" != '404' ]; do :; done\n"
                "echo $answer"));
  ASSERT_TRUE(UntilStarted());
  ASSERT_TRUE(UntilWaiting(2));
  EXPECT_FALSE(Until([this] { return Waiting() != 2 || !exits_.empty() || Out(0).size() > 9; },
                     kBeyondPatience));
  Open(1, 4, 2);
  ASSERT_TRUE(Until([this] {
    return std::count_if(elastic_.begin(), elastic_.end(),
                         [](const auto& up) { return up.has_put(); }) == 2;
  }));
  const v1::ElasticUp& put = *Last(v1::ElasticUp::kPut);
  EXPECT_EQ(put.round(), 1u);
  EXPECT_EQ(put.put().scope(), "global");
  EXPECT_THAT(put.put().key(), HasSubstr("rank_"));
  EXPECT_EQ(put.put().value(), "here");
  EXPECT_THAT(exits_, IsEmpty());
  v1::ElasticDown down;
  down.mutable_put()->set_scope("global");
  down.mutable_put()->set_key("0");
  down.mutable_put()->set_value("hello");
  Tell(1, down);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(0), "1 10 4 0\n200\n200 hello\n");
  EXPECT_EQ(Out(1), "1 10 5 1\n200\n200 hello\n");
  EXPECT_THAT(failures_, IsEmpty());
}

TEST_F(ElasticDoorTest, WhoLeavesARoundIsGivenAPlaceInTheNext) {
  Start(Elastic(2,
                "ask PUT /global/rank_$HOROVOD_RANK here\n"
                "ask GET /rank_and_size/here:$HOROVOD_LOCAL_RANK"));
  ASSERT_TRUE(UntilWaiting(2));
  Open(1, 4, 2);
  ASSERT_TRUE(Until([this] {
    return std::count_if(elastic_.begin(), elastic_.end(),
                         [](const auto& up) { return up.has_asked(); }) == 2;
  }));
  EXPECT_EQ(Last(v1::ElasticUp::kAsked)->round(), 1u);
  EXPECT_THAT(exits_, IsEmpty());
  Open(2, 6, 1);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(0), "200\n200 6,10,0,1,2,3\n");
  EXPECT_EQ(Out(1), "200\n200 -1,-1,-1,-1,-1,-1\n");
}

TEST_F(ElasticDoorTest, ADeleteWaitsUntilTheValueIsGoneEverywhere) {
  Start(Elastic(1, "ask DELETE /global_process_set_hash_5/4"));
  ASSERT_TRUE(UntilWaiting(1));
  Open(1, 4, 1);
  ASSERT_TRUE(UntilUp(v1::ElasticUp::kRemoved));
  const v1::ElasticRemoval removed = Last(v1::ElasticUp::kRemoved)->removed();
  EXPECT_EQ(removed.scope(), "global_process_set_hash_5");
  EXPECT_EQ(removed.key(), "4");
  // A removal by another host is confirmed meanwhile, and is not that.
  RemoveElsewhere(1, removed.id());
  ASSERT_TRUE(UntilUp(v1::ElasticUp::kApplied));
  EXPECT_THAT(exits_, IsEmpty());
  v1::ElasticDown done;
  done.set_applied_everywhere(removed.id());
  Tell(1, done);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "200\n");
}

TEST_F(ElasticDoorTest, WhoBreaksOffIsNotCounted) {
  Start(Elastic(1, "ask GET /global/0"));
  ASSERT_TRUE(UntilWaiting(1));
  os::UniqueFd client = Come("GET /global/1 HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(UntilWaiting(2));
  client.Reset();
  ASSERT_TRUE(UntilWaiting(1));
  // With a reset, as of a process that is killed before it has read all.
  client = Come("GET /global/1 HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(UntilWaiting(2));
  const linger now{1, 0};
  ASSERT_EQ(setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
  client.Reset();
  ASSERT_TRUE(UntilWaiting(1));
  Open(1, 4, 1);
  ASSERT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "404\n");
}

TEST_F(ElasticDoorTest, WhatIsNoRequestIsNotHeldAndMoreThanOneIsIgnored) {
  Start(Elastic(1, "ask GET /global/0"));
  ASSERT_TRUE(UntilWaiting(1));
  EXPECT_THAT(Hear(Come("GET / HTTP/1.1\r\n\r\n")), HasSubstr("400"));
  EXPECT_THAT(Hear(Come("nonsense\r\n\r\n")), HasSubstr("400"));
  EXPECT_EQ(Waiting(), 1u);
  const os::UniqueFd client = Come("GET /global/1 HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(UntilWaiting(2));
  Say(client, std::string(100000, 'x'));
  EXPECT_THAT(Hear(Come("PUT /worker_addresses/here:0 HTTP/1.1\r\nContent-Length: 1\r\n\r\n!")),
              HasSubstr("200"));
  ASSERT_TRUE(UntilUp(v1::ElasticUp::kRegistered));
  EXPECT_EQ(Waiting(), 2u);
  Open(1, 4, 1);
  EXPECT_THAT(Hear(client), HasSubstr("404"));
  ASSERT_TRUE(UntilFinished());
}

TEST_F(ElasticDoorTest, AnotherUserOfTheMachineIsNotLetIn) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  Start(Elastic(1, "ask GET /global/0"));
  ASSERT_TRUE(UntilWaiting(1));
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    constexpr uid_t kNobodys = 61235;
    if (setresuid(kNobodys, kNobodys, kNobodys) != 0) _exit(3);
    const os::UniqueFd client = Come("GET /global/1 HTTP/1.1\r\n\r\n");
    char byte = 0;
    _exit(recv(client.get(), &byte, 1, 0) > 0 ? 1 : 0);  // it would be held, or answered
  }
  const auto child = os::OpenPidfd(pid);
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(Gone(child->get()));
  const auto status = os::WaitAndReap(child->get());
  EXPECT_TRUE(status.ok() && status->code == 0);
  const os::UniqueFd own = Come("GET /global/1 HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(UntilWaiting(2));
  for (const v1::ElasticUp& up : elastic_) EXPECT_LE(up.waiting(), 2u);
  Open(1, 4, 1);
  ASSERT_TRUE(UntilFinished());
}

// Used or not: without it the host has no part in the job.
TEST_F(ElasticDoorTest, ItsDeathIsAFailureAtOnce) {
  Start(Elastic(1, "read -r x < <(sleep 60)"));
  ASSERT_TRUE(UntilStarted());
  Open(1, 4, 1);
  RemoveElsewhere(1, 17);
  ASSERT_TRUE(UntilUp(v1::ElasticUp::kApplied)) << "it runs before anybody comes";
  ASSERT_EQ(kill(DoorPid(), SIGKILL), 0);
  ASSERT_TRUE(Until([this] { return !failures_.empty(); }));
  EXPECT_EQ(failures_[0].kind(), v1::NodeFailure::KIND_HELPER);
  EXPECT_EQ(failures_[0].exit_code(), 203);
  EXPECT_THAT(failures_[0].message(),
              AllOf(HasSubstr("the key-value server of an elastic job's ranks"),
                    HasSubstr("was killed by signal 9"), HasSubstr("memory ran out?")));
  Open(2, 4, 1);  // to nobody
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, SizeIs(1));
}

// Nor when the job ends: nobody misses it then.
TEST_F(ElasticDoorTest, ItEndsWithTheJob) {
  Start(Elastic(1, "ask GET /global/0"));
  ASSERT_TRUE(UntilWaiting(1));
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, IsEmpty());
}

// Images of containers are fetched, and no helper runs yet.
TEST_F(ElasticDoorTest, WhatTheLauncherSaysBeforeTheWorkersStartIsNotLost) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/", job_id_);
  ASSERT_EQ(mkdir(directory.c_str(), 0755), 0);
  const absl::Cleanup remove = [&] { (void)!system(absl::StrCat("rm -rf ", directory).c_str()); };
  std::ofstream(directory + "/podman")
      << "#!/bin/sh\ncase $1 in\nimage) exit 1;;\n"
         "pull) while [ ! -e "
      << directory
      << "/go ]; do sleep 0.02; done;;\n"
         "run) while [ \"$1\" != img ]; do shift; done; shift; exec \"$@\";;\nesac\n";
  ASSERT_EQ(chmod((directory + "/podman").c_str(), 0755), 0);
  v1::JobPart part = Elastic(1, "ask GET /rank_and_size/here:0");
  part.mutable_programs(0)->mutable_container()->set_image("img");
  part.mutable_programs(0)->set_working_directory(directory);
  Start(std::move(part), [&] {
    setenv("PATH", absl::StrCat(directory, ":/usr/bin:/bin").c_str(), 1);
    setenv("HOME", "/of/the/node", 1);
  });
  EXPECT_TRUE(Until([this] { return !preparing_.empty(); }));
  Open(1, 4, 1);
  Open(2, 6, 1);
  v1::JobRequest beat;
  beat.mutable_heartbeat();
  Send(beat);
  EXPECT_TRUE(Until([this] { return beats_ > 0; }));  // the others were heard before it
  EXPECT_EQ(DoorPid(), 0);
  std::ofstream(directory + "/go").close();
  ASSERT_TRUE(UntilUp(v1::ElasticUp::kAsked));
  EXPECT_EQ(Last(v1::ElasticUp::kAsked)->round(), 2u);
  Open(3, 8, 1);
  EXPECT_TRUE(UntilFinished());
  EXPECT_EQ(Out(), "200 8,10,0,1,2,3\n");
}

TEST_F(ElasticDoorTest, AJobThatIsNotElasticIsNotToldOfRounds) {
  Start(Shell(1, "read -r line; echo $line"));
  ASSERT_TRUE(UntilStarted());
  Open(1, 0, 1);
  Stop(0);
  ASSERT_TRUE(UntilFinished());
  EXPECT_THAT(failures_, IsEmpty());
  EXPECT_EQ(broken_, "");
}

class ElasticNoticeTest : public ElasticDoorTest {
 protected:
  // One worker that says where it hears of changes.
  void StartListener(const std::string& how) {
    v1::JobPart part = Elastic(1, "");
    v1::Program& program = *part.mutable_programs(0);
    program.clear_argv();
    for (const std::string& word :
         {std::string("/usr/bin/python3"), std::string("-c"), std::string(kListener), how}) {
      program.add_argv(word);
    }
    part.mutable_workers(0)->set_stdin_mode(v1::STDIN_MODE_PIPE);
    v1::EnvVar& proxy = *part.add_env();  // it is not used
    proxy.set_name("http_proxy");
    proxy.set_value("http://127.0.0.1:1");
    Start(std::move(part));
    ASSERT_TRUE(UntilUp(v1::ElasticUp::kRegistered));
    EXPECT_EQ(Last(v1::ElasticUp::kRegistered)->registered().local_rank(), 0u);
    EXPECT_EQ(Last(v1::ElasticUp::kRegistered)->registered().not_understood(), "");
    EXPECT_EQ(Waiting(), 0u) << "it is not held";
    Open(1, 4, 1);
  }
  // Why not; "": it was.
  std::string Delivered(uint32_t timestamp) {
    elastic_.clear();
    Notify(1, timestamp);
    EXPECT_TRUE(UntilUp(v1::ElasticUp::kNoticed));
    if (elastic_.empty()) return "nothing was said";
    const v1::ElasticNoticed noticed = Last(v1::ElasticUp::kNoticed)->noticed();
    EXPECT_EQ(noticed.timestamp(), timestamp);
    return noticed.failed();
  }
  void End() {
    Stop(0);
    ASSERT_TRUE(UntilFinished());
    EXPECT_THAT(failures_, IsEmpty());
  }
};

TEST_F(ElasticNoticeTest, ARankHearsOfChangesOfHosts) {
  StartListener("take");
  EXPECT_EQ(Delivered(7), "");
  EXPECT_EQ(Delivered(8), "");
  ASSERT_TRUE(Until([this] { return absl::StrContains(Out(), " 8 3\n"); }));
  EXPECT_EQ(Out(), "registered 200\nheard HostsUpdatedRequest 7 3\nheard HostsUpdatedRequest 8 3\n")
      << Err();
  End();
}

TEST_F(ElasticNoticeTest, AnAnswerWithoutTheKeyIsNone) {
  StartListener("refuse");
  EXPECT_THAT(Delivered(7), AllOf(HasSubstr("127.0.0.1 port "), HasSubstr("not Horovod's answer")));
  End();
}

TEST_F(ElasticNoticeTest, WhereNobodyListensNothingIsDelivered) {
  StartListener("deaf");
  EXPECT_THAT(Delivered(7), HasSubstr(": Connection refused"));
  End();
}

}  // namespace
}  // namespace dtrain::shepherd
