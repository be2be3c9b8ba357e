; mix: every item takes one step of a random number generator.
;
; Loads the item's own word, does half of the work with the word in a register, stores
; `word * 1664525 + packet + 1013904223`, does the other half. The factor makes the result depend
; on the order of packets and on each of them running once; no other item accesses the word, so
; the order of waves does not matter.

        mul     s8, s0, s3
        add     s8, s8, s2              ; number of this wave in the grid
        shl     s8, s8, 5               ; eight words for each wave
        add     s8, s8, s4
        lane    v0
        shl     v0, v0, 2
        add     v0, v0, s8              ; address of the item's own word

        global_load v1, [v0]
        shr     s9, s6, 1
        work    s9

        mul     v1, v1, 1664525
        add     v1, v1, s5
        add     v1, v1, 1013904223
        global_store [v0], v1

        sub     s9, s6, s9
        work    s9
        end
