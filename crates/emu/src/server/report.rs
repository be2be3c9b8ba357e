//! What the devices did, told to whoever asked or watches.

use gpreempt_sim::external_gpu::ExternalGpuEvent;
use gpreempt_wire::emulator::ring_page::QueueState;
use gpreempt_wire::emulator::{Refusal, Reply};

use super::Server;
use crate::kfd::driver::Driver;

impl Server {
    /// Passes on what happened on the devices, and closes whoever cannot be told.
    pub(super) fn report_events(&mut self) {
        while let Some(event) = self.gpu.poll_event() {
            let (call, reply) = match event {
                ExternalGpuEvent::Done(call) | ExternalGpuEvent::Gone(call)
                    if Driver::is_ours(call) =>
                {
                    self.driver_call_done(call);
                    continue;
                }
                ExternalGpuEvent::Done(call) => (call, Reply::Done),
                ExternalGpuEvent::Gone(call) => (call, Reply::Refused(Refusal::NoSuchQueue)),
                ExternalGpuEvent::Faulted { queue, .. } => {
                    self.forget_queue(queue, QueueState::Faulted);
                    continue;
                }
            };
            let Some((number, request)) = self.calls.remove(&call) else { continue };
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            if let Some(control) = connection.control_mut() {
                control.calls -= 1;
            }
            connection.send(&self.epoll, request, &reply, None);
        }
        loop {
            let lost = self.connections.values().find(|connection| connection.is_lost);
            let Some(number) = lost.map(|lost| lost.number) else { return };
            self.close(number);
        }
    }

    /// Tells everybody who watches.
    pub(super) fn announce(&mut self, reply: &Reply) {
        for connection in self.connections.values_mut().filter(|c| c.watches()) {
            connection.send(&self.epoll, 0, reply, None);
        }
    }
}
