/** The module of browser.c with a model in it.
 *  @param program  an ArrayBuffer: browser.wasm
 *  @param file     an ArrayBuffer: a model that charlm or train saved
 *  @returns an object whose text(prime, temperature, random) yields what follows prime, for
 *  each byte the characters that it completes, most often one; at temperature 0 the most likely
 *  bytes. Write one text at a time: all share a state, and a new one spoils those before */
export async function open(program, file)
{
    const { instance } = await WebAssembly.instantiate(program, {});
    const c = instance.exports;
    const bytes = (at, n) => new Uint8Array(c.memory.buffer, at, n);    // moves when it grows
    const string = at => new TextDecoder().decode(bytes(at).slice(0, bytes(at).indexOf(0)));
    c._initialize();
    const at = c.reserve(file.byteLength);
    if (!at) throw new Error("no memory for " + file.byteLength + " bytes");
    bytes(at, file.byteLength).set(new Uint8Array(file));
    const wrong = c.open(at, file.byteLength);
    if (wrong) throw new Error(string(wrong));

    function next(byte)
    {
        const logits = c.next(byte);
        if (!logits) throw new Error(string(c.message()));
        return new Float32Array(c.memory.buffer, logits, 256);
    }
    /** A byte drawn from softmax(logits/temperature). */
    function draw(logits, temperature, random)
    {
        const most = Math.max(...logits);
        if (temperature <= 0) return logits.indexOf(most);
        const weights = Array.from(logits, x => Math.exp((x - most)/temperature));
        let left = random()*weights.reduce((a, b) => a + b);
        return Math.max(0, weights.findIndex(w => (left -= w) < 0));
    }
    return {
        *text(prime, temperature = 0.7, random = Math.random)
        {
            const decoder = new TextDecoder();      // for characters of several bytes
            let logits;
            c.restart();
            for (const byte of new TextEncoder().encode("\n" + prime)) logits = next(byte);
            for (;;) {
                const byte = draw(logits, temperature, random);
                yield decoder.decode(Uint8Array.of(byte), { stream: true });
                logits = next(byte);
            }
        }
    };
}
