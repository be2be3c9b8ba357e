//! Stories: a small world, something happens, and who runs then.

mod aging;
mod deadline;
mod doubt;
mod fault;
mod gang;
mod hint;
mod idle;
mod lane;
mod slice;
mod standing;
mod strict;
mod suspension;
mod turn;
mod vanish;
mod world;
mod yielded;
