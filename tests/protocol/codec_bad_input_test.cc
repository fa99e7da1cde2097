// Whatever is wrong with a text, it is refused with a reason that names the field, and nothing
// crashes.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "protocol/codec.h"
#include "protocol/prng.h"
#include "tests/protocol/message_samples.h"

namespace muster {
namespace {

using nlohmann::json;

// A place in a JSON value, and how the codec writes it in a reason.
struct Place {
  json::json_pointer pointer;
  std::string path;
  std::string leaf;
};

void Collect(const json& value, const json::json_pointer& at, const std::string& path,
             std::vector<Place>* places) {
  for (const auto& [key, child] : value.items()) {
    const bool list = value.is_array();
    const std::string child_path = list ? path + "[" + key + "]" : path + "." + key;
    const json::json_pointer pointer = list ? at / std::stoul(key) : at / key;
    // The items of a list of numbers have no names of their own.
    if (!list) places->push_back({pointer, child_path, key});
    if (child.is_structured()) Collect(child, pointer, child_path, places);
  }
}

using Decoder = std::function<Status(const std::string&)>;

struct Sample {
  std::string root;  // the first part of the paths in reasons
  json value;
  Decoder decode;
};

std::vector<Sample> Samples() {
  std::vector<Sample> samples;
  for (const Message& message : SampleMessages()) {
    samples.push_back({std::string(NameOf(message)), json::parse(Encode(message)),
                       [](const std::string& text) { return Decode(text).status(); }});
  }
  samples.push_back({"job_record", json::parse(EncodeJobRecord(SampleJobRecord())),
                     [](const std::string& text) { return DecodeJobRecord(text).status(); }});
  samples.push_back({"checkpoint_entry",
                     json::parse(EncodeCheckpointEntry(SampleCheckpointEntry())),
                     [](const std::string& text) { return DecodeCheckpointEntry(text).status(); }});
  return samples;
}

// Calls `mutate` on a copy of every field of every sample; the result must be refused with the
// field's path. `mutate` returns false to leave a field out.
void ExpectRefused(const std::function<bool(json* parent, const Place& place)>& mutate) {
  int tried = 0;
  for (const Sample& sample : Samples()) {
    ASSERT_TRUE(sample.decode(sample.value.dump()).ok()) << sample.value.dump();
    std::vector<Place> places;
    Collect(sample.value, json::json_pointer(), sample.root, &places);
    for (const Place& place : places) {
      if (place.leaf == "type") continue;
      json value = sample.value;
      if (!mutate(&value[place.pointer.parent_pointer()], place)) continue;
      ++tried;
      const Status status = sample.decode(value.dump());
      ASSERT_FALSE(status.ok()) << place.path << " in " << value.dump();
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_TRUE(status.message().starts_with(place.path + ":"))
          << place.path << ": " << status.message();
    }
  }
  EXPECT_GT(tried, 10);
}

bool IsOptional(const Place& place) {
  static const std::set<std::string> kOptional = {"attachment", "found",   "open", "bad_checkpoint",
                                                  "latest",     "started", "end",  "backend"};
  // "started" of an attachment is a flag, "end" of an ended message is required.
  return kOptional.contains(place.leaf) && place.path != "hello.attachment.started" &&
         place.path != "ended.end";
}

TEST(CodecBadInput, MissingFields) {
  ExpectRefused([](json* parent, const Place& place) {
    if (IsOptional(place)) return false;
    parent->erase(place.leaf);
    return true;
  });
}

TEST(CodecBadInput, WrongTypes) {
  for (const json& wrong : {json(nullptr), json(json::array({1, "x"})), json(json::object())}) {
    ExpectRefused([&](json* parent, const Place& place) {
      json& field = (*parent)[place.leaf];
      if (field.type() == wrong.type()) return false;
      field = wrong;
      return true;
    });
  }
  ExpectRefused([&](json* parent, const Place& place) {
    json& field = (*parent)[place.leaf];
    if (field.is_number()) {
      field = "12";
    } else {
      field = 12;
    }
    return true;
  });
}

TEST(CodecBadInput, IntegersOutOfRange) {
  const std::int64_t far = std::int64_t{1} << 62U;
  for (const json& wrong :
       {json(far), json(-far), json(~std::uint64_t{0}), json(1.5), json(1e300)}) {
    ExpectRefused([&](json* parent, const Place& place) {
      json& field = (*parent)[place.leaf];
      // Another major version has its own reason, tested below.
      if (!field.is_number_integer() || place.leaf == "major") return false;
      field = wrong;
      return true;
    });
  }
}

TEST(CodecBadInput, StringsThatAreTooLongOrNoSuchName) {
  ExpectRefused([](json* parent, const Place& place) {
    json& field = (*parent)[place.leaf];
    if (!field.is_string()) return false;
    field = std::string(5000, 'x');
    return true;
  });
  const std::set<std::string> names = {
      "job",         "worker", "node",      "cause",   "outcome",       "stage",   "vote",
      "code",        "source", "state",     "kind",    "dtype",         "lineage", "digest",
      "incarnation", "seed",   "directory", "address", "header_digest", "id",      "backend"};
  for (const char* wrong : {"../up", "a b", "ü", "\n", "a/b\\c d"}) {
    ExpectRefused([&](json* parent, const Place& place) {
      if (!names.contains(place.leaf)) return false;
      // An address may hold anything that is printable.
      if (place.leaf == "address" && std::string(wrong) == "../up") return false;
      (*parent)[place.leaf] = wrong;
      return true;
    });
  }
}

// Applies a change to a sample and returns the reason for which the text is refused.
std::string ReasonFor(std::size_t sample_index, const std::function<void(json*)>& change) {
  const Sample sample = Samples()[sample_index];
  json value = sample.value;
  change(&value);
  return sample.decode(value.dump()).message();
}
constexpr std::size_t kHello = 0;
constexpr std::size_t kReady = 3;
constexpr std::size_t kShardWritten = 10;
constexpr std::size_t kAssign = 20;
constexpr std::size_t kWriteManifest = 23;
constexpr std::size_t kGroupId = 29;
constexpr std::size_t kCheckpointEntry = 31;

TEST(CodecBadInput, BytesThatAreNone) {
  const auto reason = [](const std::string& id) {
    return ReasonFor(kGroupId, [&](json* m) { (*m)["id"] = id; });
  };
  EXPECT_EQ(reason("0aF0"),
            "group_id.id: is \"0aF0\", must be lower-case hexadecimal digits, two for each byte");
  EXPECT_EQ(reason("0af"),
            "group_id.id: is \"0af\", must be lower-case hexadecimal digits, two for each byte");
  EXPECT_EQ(reason(""), "group_id.id: is 0 bytes, must be 1 to 256");
  EXPECT_EQ(reason(std::string(2 * kMaxGroupIdBytes + 2, '0')),
            "group_id.id: is 257 bytes, must be 1 to 256");
}

TEST(CodecBadInput, FieldsThatContradictEachOther) {
  EXPECT_EQ(ReasonFor(kAssign, [](json* m) { (*m)["record"]["members"][1]["rank"] = 0; }),
            "assign.record.members: are not in the order of ranks 0, 1, 2 …");
  EXPECT_EQ(ReasonFor(kAssign, [](json* m) { (*m)["record"]["members"] = json::array(); }),
            "assign.record.members: has 0 items, must have 1 to 16384");
  EXPECT_EQ(ReasonFor(kAssign, [](json* m) { (*m)["record"]["members"][0]["previous_rank"] = 3; }),
            "assign.record.members: hold a previous_rank that is not below "
            "restore.base_world_size");
  EXPECT_EQ(ReasonFor(kAssign, [](json* m) { (*m)["record"]["restore"]["base_world_size"] = 0; }),
            "assign.record.restore.base_world_size: is 0, which no generation with live state has");
  EXPECT_EQ(ReasonFor(kAssign,
                      [](json* m) {
                        (*m)["record"]["restore"]["source"] = "checkpoint";
                        (*m)["record"]["restore"]["directory"] = "";
                      }),
            "assign.record.restore.directory: is empty, but the source is a checkpoint");
  EXPECT_EQ(ReasonFor(kShardWritten, [](json* m) { (*m)["world_size"] = 3; }),
            "shard_written.file: is of a rank that is not below world_size");
  EXPECT_EQ(ReasonFor(kCheckpointEntry, [](json* m) { (*m)["record"]["world_size"] = 1; }),
            "checkpoint_entry.record.files: hold a rank that is not below world_size");
  // A record whose manifest alone has the files: announced ones alone may be so.
  const auto unknown = [](json* record) {
    (*record)["world_size"] = 0;
    (*record)["files"] = json::array();
  };
  EXPECT_EQ(ReasonFor(kCheckpointEntry,
                      [&](json* m) {
                        unknown(&(*m)["record"]);
                        (*m)["state"] = "complete";
                      }),
            "checkpoint_entry.record.world_size: is 0, but a manifest is still to be made of this "
            "record");
  EXPECT_EQ(ReasonFor(kCheckpointEntry,
                      [&](json* m) {
                        unknown(&(*m)["record"]);
                        (*m)["state"] = "announced";
                      }),
            "");
  EXPECT_EQ(ReasonFor(kWriteManifest, [&](json* m) { unknown(&(*m)["record"]); }),
            "write_manifest.record: has no world_size");
  EXPECT_EQ(ReasonFor(kHello, [](json* m) { (*m)["spec"]["tensors"][1]["cut_dimension"] = 1; }),
            "hello.spec.tensors[1].cut_dimension: is not a dimension of the shape");
  const std::int64_t large = (std::int64_t{1} << 53U) - 1;
  EXPECT_EQ(ReasonFor(kHello,
                      [&](json* m) {
                        (*m)["spec"]["tensors"][0]["shape"] = {large, large};
                      }),
            "hello.spec.tensors[0].shape: has too many elements");
  EXPECT_EQ(ReasonFor(kHello, [&](json* m) { (*m)["spec"]["tensors"][1]["shape"] = {large}; }),
            "hello.spec.tensors[1].shape: has too many elements")
      << "counted in bytes";
  EXPECT_EQ(ReasonFor(kReady, [](json* m) { (*m)["abort_ms"] = -1; }),
            "ready.abort_ms: is -1, must be a number of milliseconds from 0 to 1000000000000");
}

TEST(CodecBadInput, AnotherMajorVersionIsTheReasonGiven) {
  json hello = Samples()[kHello].value;
  hello["major"] = 2;
  EXPECT_TRUE(Decode(hello.dump()).ok()) << "as long as the fields are known";
  hello.erase("spec");
  const Status status = Decode(hello.dump()).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_EQ(status.message(),
            "\"hello\" is of protocol version 2, this program speaks 1.0: run the same version of "
            "Muster on both sides");
}

TEST(CodecBadInput, NoMessageAtAll) {
  const std::vector<std::string> texts = {"",
                                          " ",
                                          "{",
                                          "}",
                                          "null",
                                          "7",
                                          "[]",
                                          "\"hi\"",
                                          "{}",
                                          "{]",
                                          "{\"type\"}",
                                          "{\"type\":1}",
                                          "nan",
                                          "{\"type\":\"\"}",
                                          "\x00",
                                          "\xff\xfe",
                                          "GET / HTTP/1.1\r\n\r\n",
                                          "{\"type\":\"able\"}x",
                                          "{'type':'able'}",
                                          "{\"type\":\"able\",}",
                                          "\xef\xbb\xbf",
                                          "{\"type\":\"a\xff\"}",
                                          "{\"type\":NaN}",
                                          "{\"type\":\"start\",\"generation\":1e999}",
                                          "// c\n{\"type\":\"able\"}"};
  for (const std::string& text : texts) {
    const Result<Message> message = Decode(text);
    EXPECT_FALSE(message.ok()) << text;
    EXPECT_FALSE(DecodeJobRecord(text).ok());
    EXPECT_FALSE(DecodeCheckpointEntry(text).ok());
  }
  EXPECT_EQ(Decode("{\"type\":\"able\"} \n").status(), Status()) << "trailing space is JSON";
  const Status unknown = Decode("{\"type\":\"surrender\"}").status();
  EXPECT_EQ(unknown.code(), Code::kNotFound);
  EXPECT_EQ(unknown.message(), "type: is \"surrender\", which is no message of protocol 1.0");
}

TEST(CodecBadInput, DuplicateKeys) {
  EXPECT_EQ(Decode(R"({"type":"start","generation":1,"generation":2})").status().message(),
            "message: key \"generation\" twice");
  EXPECT_FALSE(Decode(R"({"type":"able","type":"leave"})").ok());
}

TEST(CodecBadInput, DeepAndHuge) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep;
    while (deep.size() + 8 < kMaxMessageBytes) deep += open;
    const Status status = Decode(deep).status();
    EXPECT_EQ(status.message(), "message: nested deeper than 16 levels");
    EXPECT_FALSE(DecodeJobRecord(deep).ok());
  }
  const std::string huge(kMaxMessageBytes + 1, ' ');
  EXPECT_EQ(Decode(huge).status().message(),
            "message: is 4194305 bytes long, at most 4194304 are read");
  EXPECT_EQ(DecodeJobRecord(std::string(100'000'001, ' ')).status().message(),
            "job_record: is 100000001 bytes long, at most 100000000 are read");
}

std::string Mutated(std::string text, Prng* prng) {
  const std::uint64_t changes = 1 + prng->Below(4);
  for (std::uint64_t i = 0; i < changes && !text.empty(); ++i) {
    const std::size_t at = prng->Below(text.size());
    constexpr std::string_view kTelling = "{}[]\",:0-9eE.+\\u";
    switch (prng->Below(6)) {
      case 0: text[at] = static_cast<char>(prng->Below(256)); break;
      case 1: text[at] = kTelling[prng->Below(kTelling.size())]; break;
      case 2: text.erase(at, 1 + prng->Below(8)); break;
      case 3: text.insert(at, text.substr(prng->Below(text.size()), prng->Below(20))); break;
      case 4: text.resize(at); break;
      default: text[at] = static_cast<char>(text[at] ^ static_cast<char>(1U << prng->Below(8)));
    }
  }
  return text;
}

TEST(CodecBadInput, MutatedTextsNeverCrash) {
  Prng prng(20240607);
  int accepted = 0;
  int refused = 0;
  const std::vector<Sample> samples = Samples();
  for (int round = 0; round < 300; ++round) {
    for (const Sample& sample : samples) {
      const std::string text = Mutated(sample.value.dump(), &prng);
      const Status status = sample.decode(text);
      status.ok() ? ++accepted : ++refused;
      EXPECT_EQ(status.ok(), status.message().empty());
      // What is accepted can be written, and read again.
      if (const Result<Message> message = Decode(text); message.ok()) {
        EXPECT_TRUE(Decode(Encode(*message)).ok()) << text;
      }
    }
  }
  EXPECT_GT(accepted, 100) << "some mutations hit a reason or a digit";
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace muster
