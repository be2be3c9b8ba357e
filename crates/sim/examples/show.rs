use gpreempt_sim::swarm; use gpreempt_sim::world::{run,Options};
fn main(){ for a in std::env::args().skip(1){ let s:u64=a.parse().unwrap(); let sc=swarm::scenario(s);
 println!("== {s} machine {:?} dev {} units {}x{} slots {} sched {:?} dur {}", sc.machine, sc.devices, sc.model.compute_units, sc.model.waves_per_unit, sc.model.cwsr.queue_slots, sc.scheduler.unwrap().config, sc.duration);
 for t in &sc.tasks { println!("  {} p{} gang {:?} dev {:?} q{} start {} {:?} max {:?} hint {:?} dl {:?} ch {:?}", t.name,t.priority,t.gang,t.devices,t.queues,t.start,t.arrivals,t.requests_max,t.hint,t.deadline,t.changes.len()); }
 for f in &sc.faults { println!("  fault {:?} at {} lasts {}", f.kind,f.at,f.lasts); }
 match run(&sc,Options{check:true,events_max:300_000,decisions_max:100000,..Options::default()}) { Ok(_)=>println!("ok"), Err(e)=>println!("{e}") } } }
