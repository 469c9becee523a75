// Cosines between vectors, and the nearest neighbour of each.

/** Return the cosine of each pair of vectors, one array for each vector. A vector of zeros has the cosine 0 to all. */
export function cosineMatrix(vectors) {
    const norms = vectors.map((vector) => Math.sqrt(dot(vector, vector)));
    return vectors.map((left, i) =>
        vectors.map((right, j) => (norms[i] && norms[j] ? dot(left, right) / (norms[i] * norms[j]) : 0)),
    );
}

/** Return, for each vector, the index of the nearest other vector and their cosine; -1 if there is no other vector. */
export function nearestNeighbours(cosines) {
    return cosines.map((row, self) => {
        let best = -1;
        row.forEach((cosine, other) => {
            if (other !== self && (best < 0 || cosine > row[best])) best = other;
        });
        return { index: best, cosine: best < 0 ? NaN : row[best] };
    });
}

function dot(left, right) {
    return left.reduce((sum, value, index) => sum + value * right[index], 0);
}
