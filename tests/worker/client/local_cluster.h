// A coordinator in this process, its decisions kept in memory, for workers that are threads.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/server/server.h"
#include "worker/client/worker.h"

namespace muster {

class LocalCluster {
 public:
  LocalCluster() {
    std::string pattern = ::testing::TempDir() + "muster-cluster-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    coordinator::ServerOptions options;
    options.listen = {"127.0.0.1", 0};
    options.driver.config.growth_interval = Duration::Millis(10);
    options.driver.config.join_window = Duration::Millis(200);
    options.driver.persist = [](std::vector<coordinator::Persist>, coordinator::PersistDone done) {
      done(Status());
    };
    server_ = std::make_unique<coordinator::Server>(io_, std::move(options));
    const Status started = server_->Start();
    EXPECT_TRUE(started.ok()) << started.ToString();
    url_ = "http://" + server_->address().ToString();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~LocalCluster() {
    net::post(io_, [this] { server_->Stop([this] { io_.stop(); }); });
    thread_.join();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  [[nodiscard]] const std::string& url() const { return url_; }
  // Removed at the end.
  [[nodiscard]] const std::string& directory() const { return directory_; }

  // Of a small job; the worker has a name of its own.
  [[nodiscard]] WorkerOptions Options(std::int64_t steps, std::int32_t min_workers,
                                      std::int32_t max_workers) const {
    WorkerOptions options;
    options.coordinator = url_;
    options.job = "job";
    options.node = "node";
    options.record_directory = directory_;
    options.flight_directory = directory_;
    options.steps = steps;
    options.min_workers = min_workers;
    options.max_workers = max_workers;
    options.samples = 50;
    options.global_batch = 12;
    options.micro_batches = 6;
    options.seed = 5;
    options.gradient_elements = kElements;
    return options;
  }

  static constexpr std::int64_t kElements = 33;

 private:
  IoContext io_;
  std::unique_ptr<coordinator::Server> server_;
  std::thread thread_;
  std::string url_;
  std::string directory_;
};

}  // namespace muster
