#include "tests/gpu/double/double_bootstrap.h"

#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "tests/gpu/double/double_hooks.h"

namespace muster::gpu_double {
namespace {

// In the part of an id that NCCL leaves empty, so that a real one is told from one of the double's.
constexpr std::string_view kMark = "muster test double";
constexpr std::size_t kMarkAt = 64;
constexpr std::uint32_t kWelcome = 1;
constexpr std::uint32_t kRefusal = 2;

std::uint64_t Hash(std::string_view text) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

// One id's meeting of ranks, on a thread of its own.
class Root {
 public:
  Root(std::uint64_t magic, Socket listener) : magic_(magic), listener_(std::move(listener)) {}

  void Run() {
    std::size_t missing = 1;
    while (missing > 0) {
      Socket visitor;
      if (Accept(listener_, never_, &visitor) != Outcome::kDone) continue;
      Member member;
      // Strangers come too (a port scan): what is no check-in is sent away.
      if (!Introduce(visitor, &member)) continue;
      if (members_.empty()) {
        members_.resize(static_cast<std::size_t>(member.world_size));
        visitors_.resize(members_.size());
        missing = members_.size();
      }
      const auto rank = static_cast<std::size_t>(member.rank);
      if (static_cast<std::size_t>(member.world_size) != members_.size() ||
          visitors_[rank].open()) {
        static_cast<void>(Send(visitor, &kRefusal, sizeof kRefusal, never_));
        continue;
      }
      members_[rank] = member;
      visitors_[rank] = std::move(visitor);
      --missing;
    }
    listener_.Close();
    for (const Socket& visitor : visitors_) {
      // One who died since is found missing by the others.
      static_cast<void>(Send(visitor, &kWelcome, sizeof kWelcome, never_));
      static_cast<void>(Send(visitor, members_.data(), members_.size() * sizeof(Member), never_));
    }
  }

 private:
  bool Introduce(const Socket& visitor, Member* member) const {
    return Receive(visitor, member, sizeof *member, never_) == Outcome::kDone &&
           member->magic == magic_ && member->world_size > 0 && member->rank >= 0 &&
           member->rank < member->world_size;
  }

  const std::uint64_t magic_;
  Socket listener_;
  const Interrupt never_;
  std::vector<Member> members_;
  std::vector<Socket> visitors_;
};

CheckedIn AsCheckedIn(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone: return CheckedIn::kDone;
    case Outcome::kInterrupted: return CheckedIn::kInterrupted;
    case Outcome::kPeerGone: break;
  }
  return CheckedIn::kPeerGone;
}

}  // namespace

ncclUniqueId MakeId() {
  std::uint64_t magic = 0;
  if (::getrandom(&magic, sizeof magic, 0) != sizeof magic) Die("no random bytes");
  sockaddr_in address{};
  std::uint16_t port = 0;
  Socket listener = Listen(&port);
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ncclUniqueId id{};
  std::memcpy(id.internal, &magic, sizeof magic);
  std::memcpy(id.internal + sizeof magic, &address, sizeof address);
  std::memcpy(id.internal + kMarkAt, kMark.data(), kMark.size());
  auto root = std::make_shared<Root>(magic, std::move(listener));
  std::thread([root] { root->Run(); }).detach();
  return id;
}

std::uint64_t MagicOf(const ncclUniqueId& id) {
  if (std::memcmp(id.internal + kMarkAt, kMark.data(), kMark.size()) != 0) {
    Die("an id that the double did not make");
  }
  std::uint64_t magic = 0;
  std::memcpy(&magic, id.internal, sizeof magic);
  return magic;
}

CheckedIn CheckIn(const ncclUniqueId& id, const Member& self, const Interrupt& interrupt,
                  std::vector<Member>* members) {
  sockaddr_in address{};
  std::memcpy(&address, id.internal + sizeof(std::uint64_t), sizeof address);
  Socket root;
  Outcome outcome = Connect(ntohs(address.sin_port), interrupt, &root);
  if (outcome == Outcome::kDone) outcome = Send(root, &self, sizeof self, interrupt);
  std::uint32_t answer = 0;
  if (outcome == Outcome::kDone) outcome = Receive(root, &answer, sizeof answer, interrupt);
  if (outcome == Outcome::kDone && answer == kRefusal) return CheckedIn::kRefused;
  members->resize(static_cast<std::size_t>(self.world_size));
  if (outcome == Outcome::kDone) {
    outcome = Receive(root, members->data(), members->size() * sizeof(Member), interrupt);
  }
  return AsCheckedIn(outcome);
}

std::uint64_t HostHash() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return Hash(Environment("NCCL_HOSTID", name.data() + boot_id));
}

std::uint64_t BusHash() {
  int device = 0;
  std::array<char, 32> bus{};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device) != cudaSuccess) {
    return 0;
  }
  return Hash(bus.data());
}

}  // namespace muster::gpu_double
