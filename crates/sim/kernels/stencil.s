; stencil: many instructions and little else.
;
; Every item goes through 32 words of its work-group, wave after wave and lane after lane from its
; own, and keeps `total = total * 31 + word + packet`. Then half of the work with the total in a
; register, a barrier, `word += total | 1` on its own word, and the other half.
;
; The barrier keeps all reading before all writing, so order does not matter. What is added is odd
; and thus never zero: a wave that runs twice leaves other words.

        mul     s8, s0, s3
        shl     s8, s8, 5
        add     s8, s8, s4              ; address of the group's first word
        lane    v0
        shl     s9, s2, 5
        add     s9, s9, s8
        shl     v1, v0, 2
        add     v1, v1, s9              ; address of the item's own word

        mov     v2, s5                  ; the total
        mov     s10, s2                 ; the wave whose words are next
        mov     s11, 0                  ; words seen
next:   add     v3, v0, s11
        and     v3, v3, 7
        shl     v3, v3, 2
        shl     s12, s10, 5
        add     s12, s12, s8
        add     v3, v3, s12
        global_load v4, [v3]
        mul     v2, v2, 31
        add     v2, v2, v4
        add     v2, v2, s5
        add     s10, s10, 1
        branch_lt s10, s3, inside
        mov     s10, 0
inside: add     s11, s11, 1
        branch_lt s11, 32, next

        shr     s13, s6, 1
        work    s13
        barrier

        or      v2, v2, 1
        global_add [v1], v2
        sub     s13, s6, s13
        work    s13
        end
