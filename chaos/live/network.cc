#include "chaos/live/network.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "chaos/live/process.h"
#include "chaos/live/proxy.h"

namespace muster::chaos {
namespace {

constexpr Duration kCommandLimit = Duration::Seconds(20);
constexpr const char* kBridge = "lab0";
constexpr const char* kSubnet = "198.18.0";  // RFC 2544: for tests of networks
constexpr int kLabHost = 1;
constexpr int kCoordinatorHost = 2;
constexpr int kFirstNodeHost = 10;

// A fresh network namespace, as a descriptor that keeps it alive.
Result<int> MakeNamespace() {
  int descriptor = -1;
  int error = 0;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) {
      error = errno;
      return;
    }
    descriptor = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    error = errno;
  }).join();
  if (descriptor < 0) return FromErrno(error, "a network namespace");
  return descriptor;
}

std::string PathOf(const std::string& tool) {
  for (const char* directory : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}) {
    std::string path = directory + tool;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return tool;
}

// Words of a command line, without quoting.
std::vector<std::string> Words(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream text(line);
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

struct Party {
  std::string name;
  std::string link;  // its end of the veth that is in the lab's namespace
  std::string address;
  int space = -1;
  std::unique_ptr<Proxy> proxy;
};

class RealNetwork : public Network {
 public:
  RealNetwork() = default;
  RealNetwork(const RealNetwork&) = delete;
  RealNetwork& operator=(const RealNetwork&) = delete;
  ~RealNetwork() override {
    if (!bridged_) return;
    for (Party& party : parties_) {
      (void)Run(-1, "ip link del " + party.link);
      party.proxy.reset();
      if (party.space >= 0) close(party.space);
    }
    (void)Run(-1, fmt::format("ip link del {}", kBridge));
    std::error_code ignored;
    std::filesystem::remove(output_, ignored);
  }

  Status Build(const std::vector<std::string>& names, bool delays);

  [[nodiscard]] std::string AddressOf(const std::string& party) const override {
    return At(party).address;
  }
  [[nodiscard]] int NamespaceOf(const std::string& party) const override { return At(party).space; }
  [[nodiscard]] Status Cut(const std::string& party, const std::string& other,
                           Direction direction) override;
  [[nodiscard]] Status Blackhole(const std::string& party, const std::string& other) override {
    return Run(At(party).space, fmt::format("ip route add blackhole {}/32", At(other).address));
  }
  [[nodiscard]] Status Heal(const std::string& party, const std::string& other) override;
  [[nodiscard]] Result<int> Reset(const std::string& party, const std::string& other) override;
  [[nodiscard]] Status SetLink(const std::string& party, bool up) override {
    return Run(At(party).space, fmt::format("ip link set eth0 {}", up ? "up" : "down"));
  }
  [[nodiscard]] Status LimitRate(const std::string& party, std::int64_t kbit) override;
  [[nodiscard]] Status Lose(const std::string& party, std::int64_t percent) override;
  [[nodiscard]] Status Delay(const std::string& party, Duration by) override {
    const Party& found = At(party);
    if (!found.proxy) return FailedPrecondition("the network was made without delays");
    found.proxy->SetDelay(by);
    return {};
  }
  [[nodiscard]] Status Readdress(const std::string& party, const std::string& address) override;

 private:
  [[nodiscard]] const Party& At(const std::string& name) const {
    const auto found = std::find_if(parties_.begin(), parties_.end(),
                                    [&](const Party& party) { return party.name == name; });
    MUSTER_CHECK(found != parties_.end(), name);
    return *found;
  }
  Status Run(int space, const std::string& line) { return RunWords(space, Words(line)); }
  Status RunWords(int space, std::vector<std::string> words);
  Status Join(const std::string& name, int host);
  Status StartProxy(Party* party);
  // Fills the tables of a party with what it is to drop now.
  Status WriteRules(const std::string& party);

  std::vector<Party> parties_;
  std::string output_;  // of the last command
  bool bridged_ = false;
  // By party: which peers' packets it drops, and how many percent of all.
  std::map<std::string, std::map<std::string, Direction>> cuts_;
  std::map<std::string, std::int64_t> losses_;
};

Status RealNetwork::RunWords(int space, std::vector<std::string> words) {
  const std::string line = fmt::format("{}", fmt::join(words, " "));
  std::error_code ignored;
  std::filesystem::remove(output_, ignored);
  ProcessOptions command;
  words[0] = PathOf(words[0]);
  command.argv = std::move(words);
  command.output = output_;
  command.network = space;
  const Result<int> code = RunToEnd(command, kCommandLimit);
  if (!code.ok()) return code.status();
  if (*code != 0) {
    std::string said = ReadFile(output_);
    while (!said.empty() && said.back() == '\n') said.pop_back();
    return Internal(fmt::format("`{}` ended with {}: {}", line, *code, said));
  }
  return {};
}

Status RealNetwork::Build(const std::vector<std::string>& names, bool delays) {
  std::string pattern = "/tmp/muster-command-XXXXXX";
  const int file = mkstemp(pattern.data());
  if (file < 0) return FromErrno(errno, pattern);
  close(file);
  output_ = pattern;
  MUSTER_RETURN_IF_ERROR(Run(-1, fmt::format("ip link add {} type bridge", kBridge)));
  bridged_ = true;
  MUSTER_RETURN_IF_ERROR(
      Run(-1, fmt::format("ip addr add {}.{}/24 dev {}", kSubnet, kLabHost, kBridge)));
  MUSTER_RETURN_IF_ERROR(Run(-1, fmt::format("ip link set {} up", kBridge)));
  int host = kFirstNodeHost;
  for (const std::string& name : names) {
    MUSTER_RETURN_IF_ERROR(Join(name, name == "musterd" ? kCoordinatorHost : host++));
  }
  for (Party& party : parties_) {
    if (delays) MUSTER_RETURN_IF_ERROR(StartProxy(&party));
  }
  return {};
}

Status RealNetwork::Join(const std::string& name, int host) {
  Result<int> space = MakeNamespace();
  if (!space.ok()) return space.status();
  Party party;
  party.name = name;
  party.link = fmt::format("lab0-{}", host);
  party.address = fmt::format("{}.{}", kSubnet, host);
  party.space = *space;
  const std::string there = fmt::format("/proc/{}/fd/{}", getpid(), *space);
  parties_.push_back(std::move(party));
  const Party& added = parties_.back();
  MUSTER_RETURN_IF_ERROR(
      Run(-1, fmt::format("ip link add {} type veth peer name eth0 netns {}", added.link, there)));
  MUSTER_RETURN_IF_ERROR(Run(-1, fmt::format("ip link set {} master {} up", added.link, kBridge)));
  MUSTER_RETURN_IF_ERROR(Run(*space, "ip link set lo up"));
  MUSTER_RETURN_IF_ERROR(Run(*space, fmt::format("ip addr add {}/24 dev eth0", added.address)));
  return Run(*space, "ip link set eth0 up");
}

// All connections that programs of the party open go to the proxy, which opens them again with a
// mark that lets them pass.
Status RealNetwork::StartProxy(Party* party) {
  Result<std::unique_ptr<Proxy>> proxy = Proxy::Start(party->space);
  if (!proxy.ok()) return proxy.status();
  party->proxy = std::move(proxy).value();
  MUSTER_RETURN_IF_ERROR(Run(party->space, "nft add table ip delay"));
  MUSTER_RETURN_IF_ERROR(
      Run(party->space, "nft add chain ip delay out { type nat hook output priority -100 ; }"));
  return Run(party->space,
             fmt::format("nft add rule ip delay out ip daddr {}.0/24 ip protocol tcp meta mark != "
                         "{} redirect to :{}",
                         kSubnet, Proxy::kMark, party->proxy->port()));
}

Status RealNetwork::WriteRules(const std::string& party) {
  const int space = At(party).space;
  // The old table goes and the new one comes in one transaction.
  std::string rules = "table ip lab {}\ndelete table ip lab\ntable ip lab {\n";
  std::string in;
  std::string out;
  for (const auto& [other, direction] : cuts_[party]) {
    const std::string& address = At(other).address;
    if (direction != Direction::kOut) in += fmt::format("ip saddr {} counter drop\n", address);
    if (direction != Direction::kIn) out += fmt::format("ip daddr {} counter drop\n", address);
  }
  if (const std::int64_t percent = losses_[party]; percent > 0) {
    const std::string rule = fmt::format("numgen random mod 100 < {} counter drop\n", percent);
    in += "iif eth0 " + rule;
    out += "oif eth0 " + rule;
  }
  rules += "chain in { type filter hook input priority 0 ;\n" + in + "}\n";
  rules += "chain out { type filter hook output priority 0 ;\n" + out + "}\n}\n";
  return RunWords(space, {"nft", rules});
}

Status RealNetwork::Cut(const std::string& party, const std::string& other, Direction direction) {
  const auto [at, fresh] = cuts_[party].emplace(other, direction);
  if (!fresh && at->second != direction) at->second = Direction::kBoth;
  return WriteRules(party);
}

Status RealNetwork::Heal(const std::string& party, const std::string& other) {
  cuts_[party].erase(other);
  (void)Run(At(party).space, fmt::format("ip route del blackhole {}/32", At(other).address));
  return WriteRules(party);
}

Result<int> RealNetwork::Reset(const std::string& party, const std::string& other) {
  const Party& from = At(party);
  const Status status =
      RunWords(from.space, {"ss", "-K", "-H", "-t", "-n", "dst", At(other).address});
  if (!status.ok()) return status;
  const std::string said = ReadFile(output_);
  return static_cast<int>(std::count(said.begin(), said.end(), '\n'));
}

Status RealNetwork::LimitRate(const std::string& party, std::int64_t kbit) {
  const Party& limited = At(party);
  const std::array<std::pair<int, std::string>, 2> ends = {
      {{limited.space, "eth0"}, {-1, limited.link}}};
  for (const auto& [space, link] : ends) {
    (void)Run(space, fmt::format("tc qdisc del dev {} root", link));
    if (kbit <= 0) continue;
    MUSTER_RETURN_IF_ERROR(
        Run(space, fmt::format("tc qdisc add dev {} root tbf rate {}kbit burst 32kb latency 200ms",
                               link, kbit)));
  }
  return {};
}

Status RealNetwork::Lose(const std::string& party, std::int64_t percent) {
  losses_[party] = percent;
  return WriteRules(party);
}

Status RealNetwork::Readdress(const std::string& party, const std::string& address) {
  Party& moved = const_cast<Party&>(At(party));
  MUSTER_RETURN_IF_ERROR(Run(moved.space, fmt::format("ip addr add {}/24 dev eth0", address)));
  MUSTER_RETURN_IF_ERROR(
      Run(moved.space, fmt::format("ip addr del {}/24 dev eth0", moved.address)));
  // The second one of a subnet goes with the first unless it was promoted: put it back.
  (void)Run(moved.space, fmt::format("ip addr add {}/24 dev eth0", address));
  moved.address = address;
  return {};
}

}  // namespace

Result<std::unique_ptr<Network>> Network::Make(const std::vector<std::string>& parties,
                                               bool delays) {
  auto network = std::make_unique<RealNetwork>();
  if (const Status built = network->Build(parties, delays); !built.ok()) return built;
  return std::unique_ptr<Network>(std::move(network));
}

}  // namespace muster::chaos
