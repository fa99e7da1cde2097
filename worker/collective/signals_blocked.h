// Threads of the library must not run the user's signal handlers: start them within such a scope.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace muster {

// Blocks all signals for the calling thread, and so for the threads it starts, until destroyed.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace muster
