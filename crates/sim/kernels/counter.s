; counter: every item counts its packets.
;
; A quarter of the work, then `word += packet + 1`, then the rest, so that a preempt can land
; before or after the effect. Sums do not depend on order; a wave that runs twice counts twice.

        mul     s8, s0, s3
        add     s8, s8, s2              ; number of this wave in the grid
        shl     s8, s8, 5               ; eight words for each wave
        add     s8, s8, s4
        lane    v0
        shl     v0, v0, 2
        add     v0, v0, s8              ; address of the item's own word

        shr     s9, s6, 2
        work    s9

        add     s10, s5, 1
        mov     v1, s10
        global_add [v0], v1

        sub     s9, s6, s9
        work    s9
        end
