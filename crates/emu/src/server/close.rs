//! The end of a connection: a client's queues go with it, what control did stays.

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_sim::external_gpu::{Call, CallId};
use gpreempt_wire::emulator::Reply;

use super::Server;
use super::connection::{ClientSide, ControlSide, Side};

impl Server {
    /// A connection is over, whoever ended it.
    pub(super) fn close(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else { return };
        match connection.side {
            Side::Silent => {}
            Side::Client(client) => self.end_client(number, client),
            Side::Control(control) => self.end_control(number, &control),
        }
    }

    fn end_client(&mut self, number: u64, client: ClientSide) {
        for queue in client.queues {
            self.close_queue(queue);
        }
        self.gpu.close_memory(client.memory);
        self.memory_bytes -= client.memory_bytes;
        self.announce(&Reply::TaskGone(TaskId(number)));
    }

    fn end_control(&mut self, number: u64, control: &ControlSide) {
        let asked =
            |(&call, &(owner, _)): (&CallId, &(u64, u64))| (owner == number).then_some(call);
        let calls: Vec<CallId> = self.calls.iter().filter_map(asked).collect();
        for call in calls {
            self.calls.remove(&call);
            self.gpu.forget_call(call);
        }
        // The watcher of a hold is a part of whoever asked for it.
        for &queue in &control.held {
            self.gpu.forbid_hold(queue);
        }
        if control.releases {
            for &queue in &control.touched {
                self.release(queue);
            }
        }
    }

    /// Undoes what was done to a queue; nobody waits for it.
    fn release(&mut self, queue: QueueId) {
        for call in [Call::SetSlice(None), Call::Unpark, Call::Resume] {
            let id = self.next_call();
            self.gpu.call(id, queue, call);
        }
    }

    /// A new name for a call.
    pub(super) fn next_call(&mut self) -> CallId {
        self.last_call += 1;
        CallId(self.last_call)
    }
}
