// The grammar of faults.
#include "tests/gpu/double/double_faults.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace muster::gpu_double {
namespace {

std::vector<Fault> Parse(const std::string& text) {
  std::vector<Fault> faults;
  const auto wrong = ParseFaults(text, &faults);
  EXPECT_FALSE(wrong.has_value()) << *wrong;
  return faults;
}

bool Parses(const std::string& text) {
  std::vector<Fault> faults;
  return !ParseFaults(text, &faults).has_value();
}

TEST(DoubleFaults, AreReadWithTheirConditions) {
  const auto faults = Parse("init-hang@comm=2@rank=1,abort-slow@ms=250,init-error@error=remote");
  ASSERT_EQ(faults.size(), 3U);
  EXPECT_EQ(faults[0].name, "init-hang");
  EXPECT_EQ(faults[0].comm, 2);
  EXPECT_EQ(faults[0].rank, 1);
  EXPECT_EQ(faults[1].ms, 250);
  EXPECT_EQ(faults[2].error, "remote");
  EXPECT_TRUE(Parse("").empty());
}

TEST(DoubleFaults, MalformedOnesAreRefused) {
  EXPECT_FALSE(Parses("init-hungry"));
  EXPECT_FALSE(Parses("init-hang@"));
  EXPECT_FALSE(Parses("init-hang@comm"));
  EXPECT_FALSE(Parses("init-hang@comm=two"));
  EXPECT_FALSE(Parses("init-hang@comm=-1"));
  EXPECT_FALSE(Parses("init-hang@color=2"));
  EXPECT_FALSE(Parses("init-hang@when="));
  EXPECT_FALSE(Parses("init-hang@if=HOME"));
  EXPECT_FALSE(Parses("init-hang,"));
}

TEST(DoubleFaults, HoldOnlyWhereAllConditionsDo) {
  Moment moment;
  moment.comm = 2;
  moment.rank = 1;
  moment.op = 3;
  moment.name = "muster_probe";
  moment.label = "muster-g12";
  EXPECT_TRUE(Parse("collective-hang")[0].Holds(moment));
  EXPECT_TRUE(Parse("collective-hang@comm=2@rank=1@op=3")[0].Holds(moment));
  EXPECT_FALSE(Parse("collective-hang@comm=2@rank=1@op=4")[0].Holds(moment));
  EXPECT_FALSE(Parse("collective-hang@comm=1")[0].Holds(moment));
  EXPECT_TRUE(Parse("collective-hang@generation=12")[0].Holds(moment));
  EXPECT_FALSE(Parse("collective-hang@generation=2")[0].Holds(moment));
  EXPECT_TRUE(Parse("kernel-hang@kernel=muster_probe")[0].Holds(moment));
  EXPECT_FALSE(Parse("kernel-hang@kernel=muster_add_f32")[0].Holds(moment));
  EXPECT_FALSE(Parse("kernel-hang@rank=1")[0].Holds(Moment{}));
}

TEST(DoubleFaults, CanBeTurnedOnFromOutside) {
  const std::string file =
      (std::filesystem::temp_directory_path() / "muster-double-fault-XXXXXX").string();
  std::string path = file;
  const int made = ::mkstemp(path.data());
  ASSERT_GE(made, 0);
  std::filesystem::remove(path);
  const Fault fault = Parse("kernel-hang@when=" + path)[0];
  EXPECT_FALSE(fault.Holds({}));
  std::ofstream(path).put('x');
  EXPECT_TRUE(fault.Holds({}));
  std::filesystem::remove(path);

  ::setenv("MUSTER_DOUBLE_TEST_RANK", "1", 1);
  EXPECT_TRUE(Parse("kernel-hang@if=MUSTER_DOUBLE_TEST_RANK:1")[0].Holds({}));
  EXPECT_FALSE(Parse("kernel-hang@if=MUSTER_DOUBLE_TEST_RANK:2")[0].Holds({}));
  ::unsetenv("MUSTER_DOUBLE_TEST_RANK");
  EXPECT_FALSE(Parse("kernel-hang@if=MUSTER_DOUBLE_TEST_RANK:1")[0].Holds({}));
}

}  // namespace
}  // namespace muster::gpu_double
