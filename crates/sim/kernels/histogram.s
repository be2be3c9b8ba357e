; histogram: atomic additions all over the work-group's words, with work between them.
;
; Eight rounds. In each, every item adds a number between 1 and 65536, made of its own number, the
; packet and the round, to a word of the next wave of the group, in a lane that also changes. Then
; an eighth of the work, in the last round whatever is left of it.
;
; Sums do not depend on order. No number is zero and the sums of one wave do not wrap, so a wave
; that starts again after any of its rounds leaves words that are too large.

        mul     s8, s0, s3
        shl     s9, s8, 5
        add     s9, s9, s4              ; address of the group's first word
        add     s8, s8, s2
        shl     s8, s8, 3
        lane    v0
        add     v1, v0, s8              ; number of the item in the grid
        mul     v1, v1, 0x9e3779b1
        mul     v0, v0, 3               ; lanes take different words, as 3 is odd
        add     v0, v0, s5

        mov     s10, s2                 ; the wave whose words are next
        mov     s11, 0                  ; the round
        mov     s12, s6                 ; work that is left

round:  add     v2, v0, s11
        and     v2, v2, 7
        shl     v2, v2, 2
        shl     s13, s10, 5
        add     s13, s13, s9
        add     v2, v2, s13             ; address of the word

        add     s14, s5, s11
        mul     s14, s14, 0x85ebca6b
        xor     v3, v1, s14
        mul     v3, v3, 0xc2b2ae35
        shr     v3, v3, 16
        add     v3, v3, 1
        global_add [v2], v3

        add     s10, s10, 1
        branch_lt s10, s3, inside
        mov     s10, 0
inside: add     s11, s11, 1
        branch_eq s11, 8, last
        shr     s13, s6, 3
        sub     s12, s12, s13
        work    s13
        jump    round

last:   work    s12
        end
