#!/usr/bin/env node
// rate_limited.js LOCKS N: N calls to somebody's API that allows one caller at a time, and no more than one call in 100 ms.
//
// Run it on as many machines as you like: the lock lets one of them in, and it rests before it gives the lock back, so that
// the pace holds for all of them together. An API cannot check tokens: after a stall of more than the ttl two callers may meet,
// which costs a "429 Too Many Requests", no more.
"use strict";
const { spawn } = require("child_process");
const readline = require("readline");
const pawl = process.env.PAWL || "pawl";

// pawl hold: one JSON line an event; the end of its stdin gives the lock back.
function hold(url, name) {
    const child = spawn(pawl, ["hold", "-u", url, name], { stdio: ["pipe", "pipe", "inherit"] });
    const ended = new Promise((resolve) => child.on("close", resolve));
    return new Promise((resolve, reject) => {
        readline.createInterface({ input: child.stdout }).on("line", (line) => {
            const event = JSON.parse(line);
            if (event.event === "held")
                resolve({ token: event.token, release: () => { child.stdin.end(); return ended; } });
        });
        ended.then((code) => reject(new Error(`${name}: pawl hold ended with ${code}`)));
    });
}

const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function main([url, n]) {
    if (!n) throw new Error("usage: rate_limited.js LOCKS N");
    for (let i = 1; i <= Number(n); i++) {
        const lock = await hold(url, "api.example.com");
        console.log(`${Date.now()} call ${i} of ${process.pid}`);
        await rest(100);
        await lock.release();
    }
}

main(process.argv.slice(2)).catch((error) => { console.error(error.message); process.exit(1); });
