; reduce: a work-group adds up its items through the LDS.
;
; Every item makes a value between 1 and 65536 of its own word and the packet, adds it to a place
; in the LDS, works for half of the time and adds the value to its own word. After the barrier and
; another quarter wave 0 adds up the LDS and adds the sum to the group's first word. All work for
; the rest.
;
; Only its owner touches a word before the barrier, and only wave 0 adds after it, so order does
; not matter. No value is zero and the sums of one packet do not wrap: a wave that starts again
; before it came to the barrier makes the sum too large, later its own words as well or instead. A
; preempt during the first half or the quarter finds live data in the LDS.

.lds 512                                ; places for 16 waves; with more, waves share places

        mul     s8, s0, s3
        shl     s8, s8, 5
        add     s8, s8, s4              ; address of the group's first word
        shl     s9, s2, 5
        add     s9, s9, s8
        lane    v0
        shl     v0, v0, 2               ; byte of the lane
        add     v1, v0, s9              ; address of the item's own word

        global_load v2, [v1]
        xor     v2, v2, s5
        add     v2, v2, s2
        mul     v2, v2, 0x9e3779b1      ; mixes low bits into the high ones
        shr     v2, v2, 16
        add     v2, v2, 1               ; the item's value

        and     s10, s2, 15
        shl     s10, s10, 5
        add     v3, v0, s10
        lds_add [v3], v2

        shr     s11, s6, 1
        work    s11
        global_add [v1], v2
        barrier
        shr     s12, s6, 2
        work    s12

        branch_ne s2, 0, rest
        min     s10, s3, 16
        shl     s10, s10, 5             ; bytes of the LDS in use
        mov     s13, 0
        mov     s14, 0                  ; the sum
sum:    lds_load s15, [s13]
        add     s14, s14, s15
        add     s13, s13, 4
        branch_lt s13, s10, sum
        global_add [s8], s14

rest:   sub     s13, s6, s11
        sub     s13, s13, s12
        work    s13
        end
