use gpreempt_sim::swarm; use gpreempt_sim::world::{run,Options};
fn main(){ let a:Vec<u64>=std::env::args().skip(1).map(|x|x.parse().unwrap()).collect(); let mut bad=0; let mut ev=0u64; let t=std::time::Instant::now(); let mut worst=(0,0.0);
 for s in a[0]..a[1]{ let t1=std::time::Instant::now(); let r=std::panic::catch_unwind(||run(&swarm::scenario(s),Options{check:true,events_max:300_000,..Options::default()})); match r {Ok(Ok(o))=>{ev+=o.events}, Ok(Err(e))=>{bad+=1; println!("{s}: {e}")}, Err(_)=>{bad+=1; println!("{s}: panic")}}; let d=t1.elapsed().as_secs_f64(); if d>worst.1 {worst=(s,d)}; if bad>a.get(2).copied().unwrap_or(15) {break}}
 println!("bad {bad} events {ev} time {:?} worst {:?}",t.elapsed(),worst);}
