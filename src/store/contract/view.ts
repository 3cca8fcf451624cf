/** How much of a resource is returned. `BASIC` returns JSON fields, which can be large, as empty texts. */
export type View = 'BASIC' | 'FULL';
