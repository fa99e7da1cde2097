#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

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
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
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

TEST_F(RestartTest, OneDirectoryServesOneCoordinator) {
  BeginOnDisk();
  const Result<OpenedStore> second = OpenStore(directory_ + "/data");
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(directory_), std::string::npos)
      << second.status().message();
}

}  // namespace
}  // namespace muster::coordinator
