def draw_top(a): pass
def draw_live(a): pass
