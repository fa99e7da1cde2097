#include "chaos/sim/explore.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "protocol/codec.h"

namespace muster::sim {

namespace {
constexpr std::uint64_t kSayEvery = 1024;
// Longer than any search for a shorter way is worth: a path this short is readable.
constexpr std::size_t kShortEnough = 12;
}  // namespace

ExploreOptions ExploreOptions::Small(int workers) {
  ExploreOptions options;
  Options& job = options.job;
  job.workers = job.max_workers = workers;
  job.steps = 2;
  job.skip_every = 2;
  job.launchers = false;
  job.autonomy = Duration::Seconds(6);
  return options;
}

std::unique_ptr<Explorer::Node> Explorer::Root(bool trace) const {
  Options job = options_.job;
  job.trace = trace;
  const auto workers = static_cast<std::size_t>(job.workers);
  std::unique_ptr<Node> node(new Node{World(job), Budget(), std::vector<int>(workers), false});
  World& world = node->world;
  world.exhaustive_ = true;
  world.config_.growth_interval = Duration();  // or no path would be long enough for it
  world.Begin();
  Settle(*node);
  const auto trains = [](const Process& p) {
    return p.alive && p.session->started_record() != nullptr;
  };
  while (!options_.from_start && world.verdict_.ok() &&
         !std::ranges::all_of(world.processes_, trains)) {
    Perform(*node, ChoicesOf(*node).front());
  }
  node->left = options_.budget;
  return node;
}

ExploreResult Explorer::Run(const GoOn& go_on) {
  ExploreResult result;
  bool stopped = false;
  result.violation = Search(go_on, options_.max_depth, options_.max_states, &result, &stopped);
  result.complete = !stopped && !result.depth_hit && result.violation.empty();
  if (!result.violation.empty()) Shorten(go_on, &result);
  if (!result.violation.empty() || result.depth_hit) result.path = Replay(found_);
  return result;
}

// Depth first, with a copy of each world on the way.
std::string Explorer::Search(const GoOn& go_on, std::size_t max_depth, std::uint64_t max_states,
                             ExploreResult* result, bool* stopped) {
  seen_.clear();
  std::vector<Frame> stack;
  const auto enter = [&](std::unique_ptr<Node> node) {
    Choices choices = ChoicesOf(*node);
    stack.push_back({std::move(node), std::move(choices), 0});
    result->depth = std::max(result->depth, stack.size() - 1);
  };
  auto root = Root(false);
  if (!root->world.verdict_.ok()) {
    found_.clear();
    return root->world.verdict_.violation();
  }
  seen_.emplace(FingerprintOf(*root), 0U);
  ++result->states;
  enter(std::move(root));
  while (!stack.empty()) {
    Frame& top = stack.back();
    if (top.next == top.choices.size()) {
      stack.pop_back();
      continue;
    }
    const Choice choice = top.choices[top.next++];
    const bool last = top.next == top.choices.size();
    auto node = last ? std::move(top.node) : std::make_unique<Node>(*top.node);
    if (std::string bad = TryPerform(*node, choice); !bad.empty()) {
      NotePath(stack);
      return bad;
    }
    if (++result->transitions % kSayEvery == 0 && go_on && !go_on(*result, stack.size())) {
      *stopped = true;
      return "";
    }
    const auto depth = static_cast<std::uint32_t>(stack.size());
    const auto [it, fresh] = seen_.try_emplace(FingerprintOf(*node), depth);
    // With a tight bound, a state may have been cut off below a longer way to it.
    const bool nearer = shortening_ && depth < it->second;
    if (!fresh && !nearer) continue;
    it->second = depth;
    if (fresh) ++result->states;
    if (seen_.size() >= max_states) {
      *stopped = true;
      return "";
    }
    if (stack.size() >= max_depth) {
      if (!result->depth_hit) NotePath(stack);
      result->depth_hit = true;
      continue;
    }
    enter(std::move(node));
  }
  return "";
}

void Explorer::NotePath(const std::vector<Frame>& stack) {
  found_.clear();
  for (const Frame& frame : stack) found_.push_back(frame.next - 1);
}

std::string Explorer::TryPerform(Node& node, const Choice& choice) {
  try {
    Perform(node, choice);
  } catch (const std::exception& failure) {  // a broken precondition, in the twins for mutants
    return failure.what();
  }
  return node.world.verdict_.violation();
}

// The same search with a bound below the length of the known path, as long as that finds one.
void Explorer::Shorten(const GoOn& go_on, ExploreResult* result) {
  shortening_ = true;
  std::vector<std::size_t> best = found_;
  while (best.size() > kShortEnough) {
    ExploreResult again;
    bool stopped = false;
    const std::size_t bound = best.size() * 3 / 4;
    const std::string bad = Search(go_on, bound, options_.max_shorten, &again, &stopped);
    if (bad.empty()) break;
    result->violation = bad;
    best = found_;
  }
  shortening_ = false;
  found_ = best;
}

// --- For the reader ------------------------------------------------------------------------------

std::vector<std::string> Explorer::Replay(const std::vector<std::size_t>& path) const {
  auto node = Root(true);
  std::vector<std::string>& lines = node->world.result_.trace;
  for (const std::size_t index : path) {
    const Choice choice = ChoicesOf(*node)[index];
    lines.push_back("> " + LabelOf(*node, choice));
    if (!TryPerform(*node, choice).empty()) break;
  }
  return lines;
}

std::string Explorer::LabelOf(const Node& node, const Choice& choice) {
  static constexpr const char* kNames[] = {"",
                                           "time passes",
                                           "early timer of",
                                           "start again",
                                           "coordinator starts again",
                                           "wake",
                                           "unblock",
                                           "unblock and lose the session of",
                                           "KILL",
                                           "VANISH",
                                           "COORDINATOR CRASH, batch lost",
                                           "COORDINATOR CRASH, batch kept",
                                           "STORE LOST",
                                           "PAUSE",
                                           "CUT",
                                           "BLOCK UP",
                                           "BLOCK DOWN",
                                           "BLOCK BOTH",
                                           "LEAVE",
                                           "CALL FAILS of"};
  if (choice.kind != Kind::kAction) {
    const std::string who = choice.process >= 0 ? fmt::format(" w{}", choice.process) : "";
    return kNames[static_cast<std::size_t>(choice.kind)] + who;
  }
  const Pending& pending = node.world.queue_.entries().at(choice.key);
  const Action& what = pending.what;
  if (const auto* up = std::get_if<ToCoordinator>(&what)) {
    const Session* session = SessionOf(node.world, up->session);
    return fmt::format("coordinator hears {} of w{}", NameOf(up->message), session->process);
  }
  const std::string who = fmt::format("w{}", pending.process);
  if (const auto* down = std::get_if<ToWorker>(&what)) {
    return fmt::format("{} hears {}", who, NameOf(down->message));
  }
  if (const auto* ends = std::get_if<OperationEnds>(&what)) {
    return who + (ends->how == Ended::kDone ? ": operation done" : ": operation failed");
  }
  if (const auto* go_on = std::get_if<Continue>(&what)) {
    static constexpr const char* kThreads[] = {
        "has computed",          "votes",       "has restored",      "has applied",
        "comes out of its call", "has aborted", "looks what is next"};
    return fmt::format("{} {}", who, kThreads[static_cast<std::size_t>(go_on->what)]);
  }
  if (std::holds_alternative<Synced>(what)) return "batch is durable";
  if (std::holds_alternative<CoordinatorHearsClose>(what)) return "coordinator hears a close";
  if (std::holds_alternative<WorkerHearsClose>(what)) return who + " hears the close";
  if (std::holds_alternative<FileDone>(what)) return who + ": file done";
  if (std::holds_alternative<Launch>(what)) return who + " is started";
  return who + ": something";
}

}  // namespace muster::sim
