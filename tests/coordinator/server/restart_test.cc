#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "coordinator/server/store_adapter.h"
#include "tests/coordinator/server/server_fixture.h"

namespace muster::coordinator {
namespace {

class RestartTest : public ServerTest {
 protected:
  RestartTest() {
    std::string path = (std::filesystem::temp_directory_path() / "muster-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  ~RestartTest() override {
    End();
    if (!mounted_.empty()) ::umount2(mounted_.c_str(), MNT_DETACH);
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  // A file system of its own, of 16 MiB; false when this machine does not let us.
  bool MountSmallDisk(const std::string& path) {
    std::filesystem::create_directories(path);
    if (::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=16m") != 0) return false;
    mounted_ = path;
    return true;
  }

  void BeginOnDisk() {
    Result<OpenedStore> opened = OpenStore(directory_ + "/data");
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    opened_ = std::move(opened).value();
    ServerOptions options;
    options.driver.stored = std::move(opened_.jobs);
    options.driver.persist = PersistThrough(*opened_.writer);
    Begin(std::move(options));
  }

  void End() {
    server_.reset();
    if (opened_.writer != nullptr) opened_.writer->Stop();
    opened_.writer.reset();
  }

  std::string directory_;
  std::string mounted_;
  OpenedStore opened_;
};

TEST_F(RestartTest, KeepsJobsAndTheirLineage) {
  BeginOnDisk();
  const Lineage lineage = Join("a", "w0")->Find<Welcome>()->lineage;
  Join("b", "w0");
  End();
  BeginOnDisk();
  EXPECT_EQ(server_->driver().Jobs(), (std::vector<JobName>{JobName("a"), JobName("b")}));
  EXPECT_EQ(Join("a", "w0")->Find<Welcome>()->lineage, lineage);
  // The spec is remembered as well.
  Client* other = Dial();
  Hello hello = TestHello("a", "w1");
  hello.spec.steps = 11;
  other->channel->Send(Encode(hello));
  ASSERT_TRUE(RunUntil([&] { return other->closed.has_value(); }));
  ASSERT_NE(other->Find<Refused>(), nullptr);
  EXPECT_NE(other->Find<Refused>()->reason.find("steps"), std::string::npos)
      << other->Find<Refused>()->reason;
}

// The volume of the data directory is full for a while: nothing is told that is not durable, the
// workers stay in touch, and all that waited is stored once there is room, without a restart.
TEST_F(RestartTest, AFullVolumeIsSaidAndOvercome) {
  const std::string data = directory_ + "/data";
  if (!MountSmallDisk(data)) {
    GTEST_SKIP() << "cannot mount a small disk: " << std::strerror(errno);
  }
  BeginOnDisk();
  Client* member = Join("a", "w0");
  const std::string filler = data + "/filler";
  {
    std::ofstream file(filler, std::ios::binary);
    const std::string block(std::size_t{64} << 10U, 'x');
    while (file.write(block.data(), std::ssize(block)).flush()) {
    }
  }
  // More than what the log has set aside.
  Client* late = Dial();
  Hello hello = TestHello("b", "w0");
  for (int i = 0; i < 15'000; ++i) {
    hello.spec.tensors.push_back(
        {std::string(100, 'n') + std::to_string(i), DType::kFloat32, {8}, -1});
  }
  late->channel->Send(Encode(hello));
  ASSERT_TRUE(RunUntil([&] { return !server_->driver().ready().ok(); }));
  const std::string words = "index volume full: " + data + ": free space there";
  for (const char* target : {"/readyz", "/v1/jobs", "/v1/jobs/a"}) {
    const std::string answer = Get(target);
    EXPECT_NE(answer.find(words), std::string::npos) << target << ": " << answer;
  }
  EXPECT_NE(Get("/metrics").find("muster_index_volume_full 1"), std::string::npos);
  Heartbeat beat;
  beat.sequence = 1;
  member->channel->Send(Encode(beat));
  ASSERT_TRUE(RunUntil([&] { return member->Find<Ack>() != nullptr; }));
  // Tried again and again, it stays as it is.
  const std::uint64_t failures = server_->driver().counts().persist_failures;
  ASSERT_TRUE(
      RunUntil([&] { return server_->driver().counts().persist_failures >= failures + 2; }));
  EXPECT_EQ(late->Find<Welcome>(), nullptr);
  EXPECT_FALSE(member->closed.has_value());

  std::filesystem::remove(filler);
  ASSERT_TRUE(RunUntil([&] { return late->Find<Welcome>() != nullptr; }));
  EXPECT_NE(Get("/readyz").find("HTTP/1.1 200"), std::string::npos);
  EXPECT_NE(Get("/metrics").find("muster_index_volume_full 0"), std::string::npos);
  End();
  BeginOnDisk();
  EXPECT_EQ(server_->driver().Jobs(), (std::vector<JobName>{JobName("a"), JobName("b")}));
}

TEST_F(RestartTest, OneDirectoryServesOneCoordinator) {
  BeginOnDisk();
  const Result<OpenedStore> second = OpenStore(directory_ + "/data");
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(directory_), std::string::npos)
      << second.status().message();
}

}  // namespace
}  // namespace muster::coordinator
