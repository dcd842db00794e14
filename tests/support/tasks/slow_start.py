"""Tasks whose module takes its time to load: until a gate is open."""

import handlers

handlers.tell_outside(9)
