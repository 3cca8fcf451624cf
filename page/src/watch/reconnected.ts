/** Event of the window: a lost connection is open again. What failed to load meanwhile is loaded again. */
export const RECONNECTED = 'reconnected';
