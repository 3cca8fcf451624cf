/** Bounds of the parts of a step, as in the rules of the protos. */
export const MOST_PARTS = 1024;
export const TYPE_BYTES = 128;
export const NAME_BYTES = 256;
export const MEDIA_TYPE_BYTES = 128;
export const URI_BYTES = 2048;
export const DTYPE_BYTES = 16;
