/**
 * Headers of every response of the port: browsers guess no media type, and do not let pages of other origins embed the
 * response.
 */
export const SAFE_HEADERS = {
  'x-content-type-options': 'nosniff',
  'cross-origin-resource-policy': 'same-origin',
} as const;
