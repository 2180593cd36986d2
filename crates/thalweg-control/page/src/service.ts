// Requests to the service. The browser adds the cookie with the token by itself.

/** A request that the service refused, or that did not reach it. */
export class RequestError extends Error {
  constructor(
    /** HTTP status; 0 where no answer came. */
    readonly status: number,
    reason: string,
  ) {
    super(reason);
  }
}

const REASON_BY_STATUS: Record<number, string> = {
  401: "the service asks for a token",
  403: "your token does not allow this",
  404: "the service does not have this",
  413: "the request is too long",
  503: "the service cannot answer now",
};

function reasonOf(status: number, body: unknown): string {
  const error = (body as { error?: { reason?: unknown } } | null)?.error;
  if (typeof error?.reason === "string" && error.reason !== "") return error.reason;
  return REASON_BY_STATUS[status] ?? `the service answered with HTTP status ${status}`;
}

/** Asks for something. Returns an object where the answer is JSON, and bytes where it is anything else. */
async function request(path: string, init: RequestInit, timeoutMs: number): Promise<unknown> {
  const signals = [AbortSignal.timeout(timeoutMs), ...(init.signal ? [init.signal] : [])];
  let answer: Response;
  let body: unknown = null;
  try {
    answer = await fetch(path, { ...init, cache: "no-store", signal: AbortSignal.any(signals) });
    const isJson = answer.headers.get("content-type")?.includes("json") === true;
    body = isJson ? JSON.parse(await answer.text()) : await answer.arrayBuffer();
  } catch (error) {
    if (init.signal?.aborted) throw error;
    const isLate = error instanceof DOMException && error.name === "TimeoutError";
    const reason = isLate ? `no answer within ${timeoutMs / 1000} s` : "the service does not answer";
    throw new RequestError(0, reason);
  }
  if (!answer.ok) throw new RequestError(answer.status, reasonOf(answer.status, body));
  return body;
}

/** Time after which a request to read something fails. */
const READ_TIMEOUT_MS = 5_000;
/** Time after which a command fails here. The service has bounds of its own, below this one. */
const COMMAND_TIMEOUT_MS = 60_000;

export function getJson(path: string, signal?: AbortSignal): Promise<unknown> {
  return request(path, { ...(signal ? { signal } : {}) }, READ_TIMEOUT_MS);
}

export async function getBytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer> {
  const body = await request(path, { ...(signal ? { signal } : {}) }, READ_TIMEOUT_MS);
  if (body instanceof ArrayBuffer) return body;
  throw new RequestError(0, "the service answered with JSON where bytes were requested");
}

export function postJson(path: string, body: object): Promise<unknown> {
  const headers = { "content-type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body) }, COMMAND_TIMEOUT_MS);
}
